"""Every alert leads to a panel."""

from alerts.catalogue import alerts
from dashboards.places import ALERT_LIST, FIRST_ID, PLACES, failures_at, place


def test_every_failure_folder_has_a_panel() -> None:
    unplaced = [alert.name for alert in alerts() if alert.name not in PLACES]
    assert not unplaced, "name the panel of each failure in dashboards/places.py"


def test_panel_ids_say_their_dashboard() -> None:
    for dashboard, panel in PLACES.values():
        assert 0 <= panel - FIRST_ID[dashboard] < 100


def test_an_unknown_failure_leads_to_the_list_of_alerts() -> None:
    assert place("no_such_failure") == ALERT_LIST


def test_a_panel_knows_its_failures() -> None:
    assert failures_at(103) == ["tcp_backlog_full"]
    assert failures_at(999) == []
