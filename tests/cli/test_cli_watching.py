"""``dlbf top``, ``dlbf serve-metrics`` and ``dlbf.metrics``."""

import json
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import pytest
from support.places import ROOT

pytest.importorskip("click")
pytest.importorskip("rich")
from click.testing import CliRunner

from dlbf.cli import build
from dlbf.cli.exits import Trouble
from dlbf.cli.serve_metrics import make_server
from dlbf.metrics import CONTENT_TYPE, METRICS, collector, observe
from dlbf.storage import Guard, Store


def run(*arguments, code=0):
    done = CliRunner().invoke(build(), [str(each) for each in arguments])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == code, done.output
    return done


def figures_of(text):
    """Name and labels to value."""
    return {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if not line.startswith("#")
    }


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "store") as store:
        store.update({b"key %d" % i: b"" for i in range(5000)})
        yield store


def test_text_has_every_figure_of_stats(store):
    for i in range(300):
        store.get(b"absent %d" % i)
    store.get(b"key 1")
    stats = store.stats()
    figures = figures_of(collector(store, service='a\\b"c\nd').text())
    label = f'{{store="{store.path}",service="a\\\\b\\"c\\nd"'
    assert figures[f"dlbf_keys{label}}}"] == 5000
    assert figures[f"dlbf_lookups_total{label}}}"] == stats.lookups == 301
    assert figures[f"dlbf_filtered_total{label}}}"] == stats.filtered
    assert figures[f"dlbf_filtering{label}}}"] == 1
    assert figures[f"dlbf_bits_per_key{label}}}"] == stats.bits_per_key
    assert figures[f'dlbf_layer_keys{label},layer="base"}}'] == 5000
    assert figures[f'dlbf_needless_reads_total{label},cause="ordinary"}}'] == stats.needless_reads.ordinary
    of_one_host = {metric.name for metric in METRICS if not metric.name.startswith("dlbf_fleet_")}
    assert {name.partition("{")[0] for name in figures} == of_one_host | {"dlbf_silent"}


def test_what_is_not_known_is_left_out_and_a_closed_store_is_counted(tmp_path, store):
    with Store(tmp_path / "empty") as empty:
        figures = figures_of(collector(empty).text())
        assert not any(name.startswith(("dlbf_bits_per_key", "dlbf_observed_fpr", "dlbf_layer")) for name in figures)
    both = collector(empty, store, service="s")
    assert figures_of(both.text())['dlbf_silent{service="s"}'] == 1
    assert sum(name.startswith("dlbf_keys") for name in figures_of(both.text())) == 1


def test_guard_tells_the_same_names(tmp_path):
    with Guard({b"a": b"1"}, tmp_path / "guard") as guard:
        guard.get(b"b")
        assert figures_of(collector(guard).text())[f'dlbf_filtered_total{{store="{guard.path}"}}'] == 1


def test_collector_refuses_what_cannot_be_a_store_or_a_label(store):
    with pytest.raises(TypeError, match="expected stores or guards, found a dict"):
        collector({})
    for labels in ({"layer": "x"}, {"service": 3}):
        with pytest.raises(ValueError, match="expected labels of text"):
            collector(store, **labels)


def test_prometheus_client_reads_the_same_figures(store):
    client = pytest.importorskip("prometheus_client")
    registry = client.CollectorRegistry()
    store.get(b"absent")
    source = collector(store, service="s")
    registry.register(source)
    theirs = figures_of(client.generate_latest(registry).decode())
    ours = figures_of(source.text())

    def parts(name):
        head, _, labels = name.partition("{")
        return head, frozenset(labels.rstrip("}").split(","))

    assert {parts(name): value for name, value in theirs.items()} == {parts(name): v for name, v in ours.items()}


def test_opentelemetry_gets_the_same_names(store):
    sdk = pytest.importorskip("opentelemetry.sdk.metrics")
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    provider = sdk.MeterProvider([reader])
    observe(provider.get_meter("test"), store)
    found = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
    keys = next(metric for metric in found if metric.name == "dlbf_keys")
    assert keys.data.data_points[0].value == 5000
    assert {metric.name for metric in found} <= {metric.name for metric in METRICS}
    provider.shutdown()


def test_served_text_is_what_the_collector_says(store):
    source = collector(store)
    with make_server(source, "127.0.0.1", 0) as server:
        port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
                assert answer.headers["Content-Type"] == CONTENT_TYPE
                assert answer.read().decode() == source.text()
            with pytest.raises(urllib.error.HTTPError, match="404") as refused:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/other", timeout=30)
            refused.value.close()
            with pytest.raises(Trouble, match="choose another --port"):
                make_server(source, "127.0.0.1", port)
        finally:
            server.shutdown()
            thread.join()


def test_serve_metrics_once_prints_every_path(tmp_path, store):
    with Guard({b"a": b"1"}, tmp_path / "guard"):
        pass
    path = store.path
    store.close()
    figures = figures_of(run("serve-metrics", path, tmp_path / "guard", "--once").output)
    assert figures[f'dlbf_keys{{store="{path}"}}'] == 5000
    assert figures[f'dlbf_keys{{store="{tmp_path / "guard"}"}}'] == 1
    assert "Error" in run("serve-metrics", tmp_path, "--once", code=2).output
    assert "for one guard" in run("serve-metrics", "a", "b", "--engine", "lmdb:x", code=2).output


def test_top_shows_rates_between_looks(store):
    stop = threading.Event()

    def write():
        i = 0
        while not stop.is_set():
            store[b"new %d" % i] = b""
            i += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "dlbf", "top", str(store.path), "--json", "--interval", "0.2", "--count", "3"],
            capture_output=True,
            text=True,
            timeout=120,
        )
    finally:
        stop.set()
        thread.join()
    looks = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(looks) == 3, done.stderr
    assert looks[0]["keys_per_second"] is None
    assert looks[2]["keys_per_second"] > 0
    assert looks[2]["stats"]["keys"] > looks[0]["stats"]["keys"]
    assert looks[2]["commits_per_second"] > 0


def test_top_of_a_store_and_a_guard_is_a_table(tmp_path, store):
    path = store.path
    store.close()
    text = run("top", path, "--count", "1").output
    for word in ("filtering", "5,000", "bits per key", "generation", "layers", "not due"):
        assert word in text
    with Guard({b"a": b"1"}, tmp_path / "guard"):
        pass
    assert "filtering" in run("top", tmp_path / "guard", "--count", "2", "--interval", "0.05").output
    assert "Error" in run("top", tmp_path, "--count", "1", code=2).output


def test_top_ends_quietly_with_an_interrupt(store):
    process = subprocess.Popen(
        [sys.executable, "-m", "dlbf", "top", str(store.path), "--json", "--interval", "60"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline()
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")


@pytest.mark.skipif(not (ROOT / "examples").is_dir(), reason="needs a checkout")
def test_dashboard_asks_only_for_figures_that_there_are():
    dashboard = json.loads((ROOT / "examples/grafana-dashboard.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked = {name for text in expressions for name in re.findall(r"\bdlbf_\w+", text)}
    counters = {metric.name for metric in METRICS if metric.kind == "counter"}
    assert asked <= {metric.name for metric in METRICS}
    assert counters <= asked, "every counter has a panel"
    for text in expressions:  # a counter means nothing but by its rate
        assert all(text[: text.index(name)].endswith("rate(") for name in counters if name in text), text
