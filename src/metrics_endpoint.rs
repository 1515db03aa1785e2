//! The daemon's Prometheus endpoint: a recorder for all metrics of the process, and a listener on loopback that shows it.
//!
//! The exporter's own listener would bring an asynchronous runtime and an HTTP stack, 28 crates more and two and a half times the time to
//! build; a scrape every few seconds needs neither. One connection is served at a time, within [`EXCHANGE`].

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::Context;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use metrics_util::MetricKindMask;

use crate::failure::BadInput;

/// Upper bounds of the buckets of all histograms, in seconds: from a lookup in the block table to a deadline.
const BUCKETS_SECONDS: [f64; 22] = [
    1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.2, 0.5, 1.0, 2.0,
    5.0, 10.0,
];
/// Counters and gauges that nobody has published for so long are forgotten: a pool's, some time after it went.
const IDLE: Duration = Duration::from_secs(600);
/// How often recorded times are sorted into their buckets; until then each takes 8 bytes.
const UPKEEP: Duration = Duration::from_secs(1);
/// What is idle is only seen by rendering: done so often, scraped or not.
const UPKEEPS_PER_RENDER: u32 = 60;
/// How long a request and its answer may take.
const EXCHANGE: Duration = Duration::from_secs(2);
/// Longest head of a request.
const HEAD_BYTES: usize = 8 << 10;

/// Where the metrics can be read.
#[derive(Debug)]
pub struct MetricsEndpoint {
    address: SocketAddr,
}

impl MetricsEndpoint {
    /// Installs the recorder, which all that is made from here on records to, and serves it at `address` until the process ends.
    ///
    /// `BadInput` for what is no loopback address with a port, and for one that is in use.
    pub fn start(address: &str) -> anyhow::Result<Self> {
        let address = loopback(address)?;
        let listener = TcpListener::bind(address).map_err(|error| {
            BadInput::new(format!("server.metrics = \"{address}\": {error}; write an address that is free"))
        })?;
        let address = listener.local_addr().context("the address of the metrics endpoint")?;
        let recorder = PrometheusBuilder::new()
            .set_buckets(&BUCKETS_SECONDS)
            .context("the buckets of the histograms")?
            .idle_timeout(MetricKindMask::COUNTER | MetricKindMask::GAUGE, Some(IDLE))
            .build_recorder();
        let handle = recorder.handle();
        metrics::set_global_recorder(recorder)
            .map_err(|_| anyhow::anyhow!("this process has another recorder of metrics already"))?;
        terrace_connector::metrics::describe();
        let upkept = handle.clone();
        spawn("terrace-upkeep", move || keep_up(&upkept))?;
        spawn("terrace-metrics", move || serve(&listener, &handle))?;
        Ok(Self { address })
    }

    /// Where it listens, port 0 resolved.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> anyhow::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(run).map(drop).context("a thread for the metrics endpoint")
}

/// An address that only this host can reach: whoever can connect can read.
fn loopback(text: &str) -> Result<SocketAddr, BadInput> {
    let refuse = |why: &str| {
        BadInput::new(format!(
            "server.metrics = \"{text}\": {why}; write a loopback address, such as \"127.0.0.1:9464\""
        ))
    };
    let address: SocketAddr = text.parse().map_err(|_| refuse("this is no address with a port"))?;
    if address.ip().to_canonical().is_loopback() {
        Ok(address)
    } else {
        Err(refuse("other hosts could read it, and it asks for no password"))
    }
}

fn keep_up(handle: &PrometheusHandle) {
    let mut upkeeps = 0_u32;
    loop {
        std::thread::sleep(UPKEEP);
        handle.run_upkeep();
        upkeeps = upkeeps.wrapping_add(1);
        if upkeeps.is_multiple_of(UPKEEPS_PER_RENDER) {
            drop(handle.render());
        }
    }
}

fn serve(listener: &TcpListener, handle: &PrometheusHandle) {
    loop {
        match listener.accept() {
            // A client that went away, or sent nonsense, has told itself.
            Ok((stream, _)) => drop(answer(stream, || handle.render())),
            Err(error) => {
                tracing::warn!(%error, "the metrics endpoint could not take a connection");
                std::thread::sleep(UPKEEP); // out of descriptors: not in a hot loop
            }
        }
    }
}

fn answer(mut stream: TcpStream, render: impl FnOnce() -> String) -> io::Result<()> {
    let until = Instant::now() + EXCHANGE;
    let head = read_head(&mut stream, until)?;
    let (status, body) = match target(&head) {
        Some(("GET", "/metrics")) => ("200 OK", render()),
        Some(("GET", _)) => ("404 Not Found", "the metrics are at /metrics\n".to_owned()),
        Some(_) => ("405 Method Not Allowed", "only GET is answered\n".to_owned()),
        None => ("400 Bad Request", "this is no HTTP request\n".to_owned()),
    };
    let response = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let mut unsent = response.as_bytes();
    while !unsent.is_empty() {
        stream.set_write_timeout(Some(left(until)?))?;
        let sent = stream.write(unsent)?;
        unsent = unsent.get(sent..).filter(|_| sent > 0).ok_or(io::ErrorKind::WriteZero)?;
    }
    Ok(())
}

/// The bytes up to the empty line, or as many as were sent before the client closed its side or the head became too long.
fn read_head(stream: &mut TcpStream, until: Instant) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    let mut piece = [0; 1024];
    while head.len() < HEAD_BYTES && !head.windows(4).any(|end| end == b"\r\n\r\n") {
        stream.set_read_timeout(Some(left(until)?))?;
        let got = stream.read(&mut piece)?;
        if got == 0 {
            break;
        }
        head.extend(piece.iter().take(got));
    }
    Ok(head)
}

fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Method and path of a request, less what follows a `?`.
fn target(head: &[u8]) -> Option<(&str, &str)> {
    let line = head.split(|byte| *byte == b'\r').next()?;
    let mut words = std::str::from_utf8(line).ok()?.split(' ');
    let (method, target, version) = (words.next()?, words.next()?, words.next()?);
    (version.starts_with("HTTP/1.") && words.next().is_none())
        .then_some((method, target.split('?').next().unwrap_or(target)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_addresses_are_taken() {
        for good in ["127.0.0.1:9464", "127.8.0.1:0", "[::1]:9464", "[::ffff:127.0.0.1]:1"] {
            assert_eq!(loopback(good).expect("loopback"), good.parse().expect("an address"));
        }
        for (bad, why) in [
            ("0.0.0.0:9464", "other hosts"),
            ("[::]:9464", "other hosts"),
            ("10.0.0.1:9464", "other hosts"),
            ("[::ffff:10.0.0.1]:1", "other hosts"),
            ("127.0.0.1", "no address with a port"),
            ("localhost:9464", "no address with a port"),
            ("", "no address with a port"),
        ] {
            let error = loopback(bad).expect_err(bad).to_string();
            assert!(error.contains(&format!("server.metrics = {bad:?}")) && error.contains(why), "{error}");
            assert!(error.ends_with("such as \"127.0.0.1:9464\""), "{error}");
        }
    }

    /// What comes back for these bytes.
    fn exchange(request: &[u8]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let mut client = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
        client.write_all(request).expect("sent");
        client.shutdown(std::net::Shutdown::Write).expect("half closed");
        let (stream, _) = listener.accept().expect("the client");
        answer(stream, || "a 1\n".to_owned()).expect("answered");
        let mut answered = String::new();
        client.read_to_string(&mut answered).expect("text");
        answered
    }

    #[test]
    fn requests_are_answered_by_what_they_ask_for() {
        let good = exchange(b"GET /metrics?x=1 HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert!(
            good.starts_with("HTTP/1.1 200 OK\r\n")
                && good.ends_with("\r\nContent-Length: 4\r\nConnection: close\r\n\r\na 1\n")
        );
        for (request, status) in [
            (&b"GET / HTTP/1.1\r\n\r\n"[..], "404"),
            (b"POST /metrics HTTP/1.1\r\n\r\n", "405"),
            (b"GET /metrics\r\n\r\n", "400"),
            (b"\xff\xff\xff", "400"),
            (b"", "400"),
            (&[b'x'; HEAD_BYTES], "400"),
        ] {
            let answered = exchange(request);
            assert!(answered.starts_with(&format!("HTTP/1.1 {status} ")), "{answered:?}");
        }
    }
}
