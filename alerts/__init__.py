"""One folder per failure: its rule, the rule's tests, the runbook and the drill that causes it.

    rule.yaml     recording rules and one alert
    test*.yaml    promtool tests of the built rules
    runbook.md    Meaning, Impact, Diagnosis, Mitigation
    drill.py      breaks the real thing

``catalogue`` lists the folders, ``build`` turns them into ``built/enginescope.rules.yaml``.
"""
