//! The page lists what exists, and what it lists is there after a short run: in a daemon's scrape, and in an engine's process.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{Read, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::daemon::Daemon;
use metrics_exporter_prometheus::PrometheusBuilder;
use terrace::{
    Config, ConnectorOptions, CopyEngine, CopyEngineKind, OffloadingConnector, Region, RegionOptions, Stats,
    SystemClock, TieringOffloadingManager,
};
use terrace_connector::metrics::{ConnectorPublisher, ManagerPublisher, Metric, MetricKind, daemon_list, engine_list};
use terrace_kernels::{CopyRun, Direction, Order};

/// A row a metric.
fn table(metrics: &[Metric]) -> String {
    let mut text = "| name | type | unit | labels | meaning |\n|---|---|---|---|---|\n".to_owned();
    for metric in metrics {
        let kind = match metric.kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        };
        let (name, unit, help) = (metric.name, metric.unit().as_str(), metric.help);
        writeln!(text, "| `{name}` | {kind} | {unit} | {} | {help} |", metric.labels.join(", ")).expect("a string");
    }
    text
}

/// The page with this table behind the marker.
fn with_table(page: &str, marker: &str, table: &str) -> String {
    let (before, rest) = page.split_once(marker).unwrap_or_else(|| panic!("docs/metrics.md has no {marker}"));
    let (line, rest) = rest.split_once('\n').expect("the marker's line ends");
    let (_, after) = rest.split_once("<!-- end -->").expect("the table's end is marked");
    format!("{before}{marker}{line}\n{table}<!-- end -->{after}")
}

#[test]
fn the_page_lists_exactly_what_exists() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/metrics.md");
    let page = std::fs::read_to_string(&path).expect("docs/metrics.md");
    let made = with_table(&page, "<!-- daemon:", &table(&daemon_list()));
    let made = with_table(&made, "<!-- engine:", &table(&engine_list()));
    if std::env::var_os("TERRACE_WRITE_DOCS").is_some() {
        std::fs::write(&path, made).expect("docs/metrics.md is written");
    } else if let Some((got, want)) = page.lines().zip(made.lines()).find(|(got, want)| got != want) {
        panic!(
            "docs/metrics.md says\n{got}\nand should\n{want}\n(TERRACE_WRITE_DOCS=1 cargo test --test metrics writes it)"
        );
    } else {
        assert_eq!(page, made);
    }
}

/// What a scrape says of one name.
#[derive(Debug, Default)]
struct Seen {
    kind: String,
    help: String,
    labels: BTreeSet<String>,
    /// Sum of its counters or gauges; of a histogram, how much was recorded.
    total: f64,
}

fn parse(scrape: &str) -> BTreeMap<String, Seen> {
    let mut seen: BTreeMap<String, Seen> = BTreeMap::new();
    for line in scrape.lines().filter(|line| !line.is_empty()) {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("a help text");
            seen.entry(name.to_owned()).or_default().help = help.to_owned();
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a type");
            seen.entry(name.to_owned()).or_default().kind = kind.to_owned();
        } else {
            let (series, value) = line.rsplit_once(' ').expect("a value");
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| {
                let base = name.strip_suffix(end)?;
                seen.get(base).is_some_and(|seen| seen.kind == "histogram").then(|| base.to_owned())
            });
            let counts = base.is_none() || name.ends_with("_count");
            let seen = seen.get_mut(base.as_deref().unwrap_or(name)).unwrap_or_else(|| panic!("{name} has no type"));
            let names = labels.split("\",").filter_map(|label| label.split_once('='));
            seen.labels.extend(names.map(|(name, _)| name.to_owned()).filter(|name| name != "le"));
            if counts {
                seen.total += value.parse::<f64>().expect("a number");
            }
        }
    }
    seen
}

/// Fails unless each of `metrics` is in the scrape, as it is listed.
fn assert_all_there(metrics: &[Metric], seen: &BTreeMap<String, Seen>) {
    for metric in metrics {
        let found = seen.get(metric.name).unwrap_or_else(|| panic!("{} is not in the scrape", metric.name));
        let kind = format!("{:?}", metric.kind).to_lowercase();
        assert_eq!(
            (&found.kind, found.help.as_str()),
            (&kind, metric.help.replace('\n', "\\n").as_str()),
            "{}",
            metric.name
        );
        let labels: BTreeSet<String> = metric.labels.iter().map(|label| (*label).to_owned()).collect();
        assert_eq!(found.labels, labels, "labels of {}", metric.name);
        if metric.kind == MetricKind::Histogram {
            assert!(found.total > 0.0, "nothing was recorded in {}", metric.name);
        }
    }
}

const CONFIG: &str = r#"
[primary]
blocks = 600
[geometry]
block_bytes = 16384
[server]
socket = "{place}/terrace.sock"
session_share = 1.0
metrics = "127.0.0.1:0"
[[tier]]
type = "nvme"
paths = ["{place}/nvme"]
blocks = 4000
scrub_bytes_per_second = 0
"#;

fn scrape(address: &str) -> BTreeMap<String, Seen> {
    let mut stream = TcpStream::connect(address).expect("the endpoint listens");
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("sent");
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("text");
    let (head, body) = response.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("text/plain; version=0.0.4"), "{head}");
    parse(body)
}

#[test]
fn a_daemon_shows_all_of_them() {
    let place = tempfile::tempdir().expect("a place");
    let daemon = Daemon::start(place.path(), CONFIG);
    let report = daemon
        .replay()
        .args("--block-bytes 16384 --gpu-blocks 512 --seed 7 --limit 150 --concurrency 1".split(' '))
        .run();
    assert_eq!(report["wrong_blocks"], 0, "{report:#}");

    // Published once a second.
    let until = Instant::now() + Duration::from_secs(20);
    let total = |seen: &BTreeMap<String, Seen>, name: &str| seen.get(name).map_or(0.0, |seen| seen.total);
    let seen = loop {
        let seen = scrape(daemon.metrics());
        let replayed = total(&seen, "terrace_steps_total") > 0.0 && total(&seen, "terrace_sessions") == 0.0;
        // Times are there at once, counters with the next publication.
        let settled = total(&seen, "terrace_cascade_blocks") == 0.0
            && total(&seen, "terrace_tier_store_seconds") == total(&seen, "terrace_tier_stores_total");
        if replayed && settled || Instant::now() > until {
            break seen;
        }
        std::thread::sleep(Duration::from_millis(100));
    };
    assert_all_there(&daemon_list(), &seen);
    let listed: BTreeSet<_> = daemon_list().iter().map(|metric| metric.name).collect();
    let unlisted: Vec<_> = seen.keys().filter(|name| !listed.contains(name.as_str())).collect();
    assert!(unlisted.is_empty(), "not on the page: {unlisted:?}");

    // They tell what the replay saw.
    let hits = ["primary", "nvme"].iter().filter_map(|tier| report["hits"][*tier].as_f64()).sum::<f64>();
    assert_eq!(total(&seen, "terrace_tier_hits_total"), hits, "{report:#}");
    assert_eq!(total(&seen, "terrace_primary_slots"), 600.0, "each slot is in one state");
    assert_eq!(total(&seen, "terrace_lookup_seconds"), total(&seen, "terrace_lookups_total"));
    for tier in ["load", "store"] {
        let name = |end: &str| format!("terrace_tier_{tier}{end}");
        assert_eq!(total(&seen, &name("_seconds")), total(&seen, &name("s_total")), "{tier}");
        assert_eq!(total(&seen, &name("_bytes_total")), 16384.0 * total(&seen, &name("s_total")), "{tier}");
    }
}

#[test]
fn what_is_no_loopback_address_is_refused() {
    let place = tempfile::tempdir().expect("a place");
    let path = place.path().join("terrace.toml");
    let socket = place.path().join("terrace.sock");
    std::fs::write(
        &path,
        format!("[primary]\nblocks = 1\n[server]\nsocket = {socket:?}\nmetrics = \"0.0.0.0:9464\"\n"),
    )
    .expect("a configuration");
    let mut command = Command::new(env!("CARGO_BIN_EXE_terrace"));
    let output = command.args(["serve", "--config"]).arg(&path).output().expect("terrace serve");
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.contains("server.metrics = \"0.0.0.0:9464\"") && told.contains("127.0.0.1:9464"), "{told}");
    assert!(!socket.exists(), "it did not begin to listen");
}

#[test]
fn an_engine_publishes_its_own() {
    const BLOCK_BYTES: u32 = 4096;
    let recorder = PrometheusBuilder::new().set_buckets(&[1.0]).expect("buckets").build_recorder();
    let handle = recorder.handle();
    metrics::with_local_recorder(&recorder, || {
        terrace_connector::metrics::describe();
        let text = format!("[primary]\nblocks = 4\n[geometry]\nblock_bytes = {BLOCK_BYTES}\n");
        let config = Config::parse(&text, "test").expect("valid");
        let options = RegionOptions {
            slots: 4,
            slot_stride: BLOCK_BYTES,
            block_bytes: BLOCK_BYTES,
            huge_pages: terrace_config::Choice::Off,
            lock_memory: false,
            numa_node: None,
            prefault_threads: 1,
        };
        let region = Region::create(&options, &|_, _| {}).expect("a region");
        let manager =
            TieringOffloadingManager::new(&config, Vec::new(), Arc::new(SystemClock::new())).expect("a manager");
        let mut engine = CopyEngineKind::Host { threads: 1, queue_entries: 4 }.build().expect("an engine");
        for direction in [Direction::DeviceToHost, Direction::HostToDevice] {
            copy(&mut *engine, direction);
        }
        let options = ConnectorOptions::new(config.geometry, 8);
        let connector = OffloadingConnector::new(options, manager, region, engine).expect("a connector");
        ConnectorPublisher::new("test").publish(&connector);
    });
    handle.run_upkeep();
    let seen = parse(&handle.render());
    assert_all_there(&engine_list(), &seen);
    assert_eq!((seen["terrace_copies_total"].total, seen["terrace_copy_bytes_total"].total), (2.0, 2.0 * 64.0));
    assert_eq!(seen["terrace_copy_seconds"].total, 2.0);
}

/// Copies 64 bytes and waits for it.
fn copy(engine: &mut dyn CopyEngine, direction: Direction) {
    let (from, mut to) = (vec![7_u8; 64], vec![0_u8; 64]);
    let run = CopyRun { src: from.as_ptr().addr(), dst: to.as_mut_ptr().addr(), len: 64 };
    // SAFETY: both are 64 bytes long, do not overlap, and nobody else touches them before the copy is done.
    #[expect(unsafe_code, reason = "the contract of copy engines")]
    let id = unsafe { engine.submit(direction, &[run], Order::default()) }.expect("room");
    engine.wait(&[id]).expect("copied");
    assert_eq!(from, to);
}

#[test]
fn counters_go_on_when_a_pool_comes_back_and_gauges_end_with_it() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    let shown = |name: &str| parse(&handle.render()).get(name).map(|seen| seen.total);
    metrics::with_local_recorder(&recorder, || {
        let mut first = ManagerPublisher::new("one");
        for lookups in [2, 5] {
            first.publish(&Stats { lookups, requests: 3, ..Stats::default() });
        }
        assert_eq!((shown("terrace_lookups_total"), shown("terrace_requests")), (Some(5.0), Some(3.0)));
        drop(first);
        assert_eq!((shown("terrace_lookups_total"), shown("terrace_requests")), (Some(5.0), Some(0.0)));
        let mut second = ManagerPublisher::new("one");
        second.publish(&Stats { lookups: 2, requests: 1, ..Stats::default() });
        assert_eq!((shown("terrace_lookups_total"), shown("terrace_requests")), (Some(7.0), Some(1.0)));
        drop(ManagerPublisher::new("two"));
        assert!(!handle.render().contains("\"two\""), "it has published nothing");
    });
}
