"""GPT-2's spelling of bytes as characters, which byte-level vocabularies are written in."""


def _byte_alphabet() -> dict[str, int]:
    # GPT-2 spells bytes that print as themselves and the others, in order, as the characters from U+0100.
    printing = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printing]
    shifted = {chr(0x100 + index): byte for index, byte in enumerate(others)}
    return {chr(byte): byte for byte in printing} | shifted


ALPHABET = _byte_alphabet()


def piece_bytes(token: str) -> bytes:
    """Return the bytes that a vocabulary entry stands for; one that is not spelled in bytes is plain text."""
    try:
        return bytes([ALPHABET[character] for character in token])
    except KeyError:
        return token.encode("utf-8")
