"""What Linux says about sockets and processes: bytes parsed apart from the reading of them."""
