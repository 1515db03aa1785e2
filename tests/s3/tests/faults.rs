//! Every fault does what it says, seen by a bare HTTP client, and every count is right.

#[path = "common/origin.rs"]
mod origin;

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use origin::Origin;
use terrace_test_s3::{Count, Fault, Operation, Proxy, Rule, RuleId};

const KEY: &str = "/bucket/c/segments/1";
const OBJECT_BYTES: usize = 100_000;
/// Long enough for anything here to happen that is going to.
const PATIENCE: Duration = Duration::from_secs(20);
/// Long enough for an answer that is not held back.
const A_WHILE: Duration = Duration::from_millis(300);

/// What a client saw of an answer.
#[derive(Debug, PartialEq)]
struct Answer {
    status: u16,
    head: String,
    body: Vec<u8>,
    /// How it ended, if not with all that Content-Length promised.
    broken: Option<ErrorKind>,
}

/// One request on a connection of its own or of the caller's. `Err`: no head came.
fn ask(stream: &mut TcpStream, method: &str, path: &str, more: &str, body: &[u8]) -> Result<Answer, ErrorKind> {
    let length = if body.is_empty() { String::new() } else { format!("content-length: {}\r\n", body.len()) };
    let head = format!("{method} {path} HTTP/1.1\r\nhost: s3.example:1234\r\n{length}{more}\r\n");
    // What cannot be written any more is told by what is read.
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        match stream.read(&mut byte) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof),
            Ok(_) => head.push(byte[0]),
            Err(error) => return Err(error.kind()),
        }
    }
    let head = String::from_utf8(head).expect("a head").to_lowercase();
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    let length = field(&head, "content-length").map_or(0, |length| length.parse().expect("a length"));
    let mut body = vec![0; length];
    let mut filled = 0;
    let broken = loop {
        if filled == length {
            break None;
        }
        match stream.read(&mut body[filled..]) {
            Ok(0) => break Some(ErrorKind::UnexpectedEof),
            Ok(count) => filled += count,
            Err(error) => break Some(error.kind()),
        }
    };
    body.truncate(filled);
    Ok(Answer { status, head, body, broken })
}

fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("the proxy takes connections");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
    stream
}

struct Bench {
    origin: Origin,
    proxy: Proxy,
    object: Vec<u8>,
}

impl Bench {
    fn new() -> Self {
        let origin = Origin::start();
        let proxy = Proxy::start(origin.address).expect("a proxy");
        let object: Vec<u8> = (0..OBJECT_BYTES).map(|i| (i * 31 % 251) as u8).collect();
        origin.seen().objects.insert(KEY.to_owned(), object.clone().into());
        Self { origin, proxy, object }
    }

    fn only(&self, fault: Fault) -> RuleId {
        self.proxy.clear();
        self.proxy.reset();
        let mut seen = self.origin.seen();
        seen.requests.clear();
        seen.broken.clear();
        drop(seen);
        self.proxy.add(Rule::new(fault))
    }

    fn get(&self) -> Result<Answer, ErrorKind> {
        ask(&mut connect(self.proxy.address()), "GET", KEY, "", b"")
    }

    fn put(&self, path: &str, body: &[u8]) -> Result<Answer, ErrorKind> {
        ask(&mut connect(self.proxy.address()), "PUT", path, "", body)
    }

    fn requests(&self) -> usize {
        self.origin.seen().requests.len()
    }

    /// The counts of what ended, which may be a moment after the client saw the end.
    fn counted(&self, operation: Operation, wanted: Count) {
        for _ in 0..2000 {
            if self.proxy.counts().of(operation) == wanted {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
        panic!("{:?} instead of {wanted:?}", self.proxy.counts().of(operation));
    }
}

#[test]
fn what_has_no_fault_passes_unchanged_and_is_counted() {
    let bench = Bench::new();
    let mut stream = connect(bench.proxy.address());
    for _ in 0..3 {
        let answer = ask(&mut stream, "GET", KEY, "", b"").expect("an answer");
        assert_eq!((answer.status, answer.broken), (200, None));
        assert!(answer.body == bench.object);
    }
    assert_eq!(bench.origin.seen().host, "s3.example:1234", "the Host header is signed");
    let body = vec![7; 300_000];
    assert_eq!(ask(&mut stream, "PUT", "/bucket/c/log/9", "", &body).expect("an answer").status, 200);
    assert!(bench.origin.seen().objects["/bucket/c/log/9"] == body);
    assert_eq!(ask(&mut stream, "GET", "/bucket/c/log/0", "", b"").expect("an answer").status, 404);

    let bytes = 3 * OBJECT_BYTES as u64;
    bench.counted(Operation::Get, Count { requests: 4, ok: 3, refused: 1, sent_bytes: bytes, ..Count::default() });
    bench.counted(Operation::Put, Count { requests: 1, ok: 1, received_bytes: 300_000, ..Count::default() });
    let counts = bench.proxy.counts();
    assert_eq!(counts.total().requests, 5);
    assert_eq!(counts.under("/segments/").total().requests, 3);
    assert_eq!(counts.under("/log/").of(Operation::Get).requests, 1);
    assert_eq!(counts.to_json()["places"]["/bucket/c/log/"]["put"]["received_bytes"], 300_000);
    bench.proxy.reset();
    assert_eq!(bench.proxy.counts().total(), Count::default());
}

#[test]
fn refusals_of_the_proxy_do_not_reach_the_server_and_those_after_do() {
    let bench = Bench::new();
    for (status, code) in [(500, "internalerror"), (503, "slowdown"), (404, "nosuchkey")] {
        let rule = bench.only(Fault::Status(status));
        let answer = bench.get().expect("an answer");
        assert_eq!((answer.status, answer.broken), (status, None));
        assert!(String::from_utf8_lossy(&answer.body).to_lowercase().contains(&format!("<code>{code}</code>")));
        assert_eq!(bench.put("/bucket/refused", &[1; 500_000]).expect("an answer").status, status);
        assert_eq!((bench.requests(), bench.proxy.applied(rule)), (0, 2));
        assert_eq!(bench.proxy.counts().of(Operation::Put).received_bytes, 500_000);
    }
    bench.only(Fault::StatusAfter(500));
    assert_eq!(bench.put("/bucket/done", &[1; 500_000]).expect("an answer").status, 500);
    assert_eq!(bench.origin.seen().objects["/bucket/done"].len(), 500_000);
    let wanted = Count { requests: 1, failed: 1, faults: 1, received_bytes: 500_000, ..Count::default() };
    let sent = bench.proxy.counts().of(Operation::Put).sent_bytes;
    bench.counted(Operation::Put, Count { sent_bytes: sent, ..wanted });
}

#[test]
fn resets_are_resets_and_the_server_sees_what_the_fault_says() {
    let bench = Bench::new();
    let reset = Err(ErrorKind::ConnectionReset);
    bench.only(Fault::ResetBefore);
    assert_eq!(bench.get(), reset);
    assert_eq!(bench.requests(), 0);
    bench.counted(Operation::Get, Count { requests: 1, cut: 1, faults: 1, ..Count::default() });

    bench.only(Fault::ResetAfter);
    assert_eq!(bench.put("/bucket/after", &[1; 500_000]), reset);
    assert_eq!(bench.origin.seen().objects["/bucket/after"].len(), 500_000);
    bench
        .counted(Operation::Put, Count { requests: 1, cut: 1, faults: 1, received_bytes: 500_000, ..Count::default() });

    bench.only(Fault::ResetInUpload);
    assert_eq!(bench.put("/bucket/half", &[1; 500_000]), reset);
    bench
        .counted(Operation::Put, Count { requests: 1, cut: 1, faults: 1, received_bytes: 250_000, ..Count::default() });
    for _ in 0..2000 {
        if !bench.origin.seen().broken.is_empty() {
            break;
        }
        thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(bench.origin.seen().broken, ["PUT /bucket/half"], "the server saw it begin and break off");
    assert!(!bench.origin.seen().objects.contains_key("/bucket/half"));

    bench.only(Fault::ResetInBody);
    let answer = bench.get().expect("a head");
    assert_eq!((answer.status, answer.broken), (200, Some(ErrorKind::ConnectionReset)));
    assert_eq!(field(&answer.head, "content-length"), Some("100000"));
    assert!(answer.body.len() <= OBJECT_BYTES / 2 && bench.object.starts_with(&answer.body));
    bench.counted(
        Operation::Get,
        Count { requests: 1, ok: 1, cut: 1, faults: 1, sent_bytes: 50_000, ..Count::default() },
    );
}

#[test]
fn short_bodies_are_seen_as_short_and_truncated_ones_are_not() {
    let bench = Bench::new();
    bench.only(Fault::ShortBody);
    let answer = bench.get().expect("a head");
    assert_eq!((answer.status, answer.broken), (200, Some(ErrorKind::UnexpectedEof)));
    assert!(answer.body == bench.object[..OBJECT_BYTES / 2]);
    bench.only(Fault::Truncated);
    let mut stream = connect(bench.proxy.address());
    for _ in 0..2 {
        // The connection lives on: nothing tells the client that anything was wrong.
        let answer = ask(&mut stream, "GET", KEY, "", b"").expect("a head");
        assert_eq!((answer.status, answer.broken), (200, None));
        assert_eq!(field(&answer.head, "content-length"), Some("50000"));
        assert!(answer.body == bench.object[..OBJECT_BYTES / 2]);
    }
    bench.counted(Operation::Get, Count { requests: 2, ok: 2, faults: 2, sent_bytes: 100_000, ..Count::default() });
}

#[test]
fn so_many_bits_are_wrong_and_the_seed_says_which() {
    let bench = Bench::new();
    let flipped = |seed| {
        bench.proxy.clear();
        bench.proxy.add(Rule::new(Fault::WrongBytes { bits: 10 }).seed(seed));
        let answer = bench.get().expect("an answer");
        assert_eq!((answer.status, answer.broken, answer.body.len()), (200, None, OBJECT_BYTES));
        answer.body
    };
    let bits = |body: &[u8]| body.iter().zip(&bench.object).map(|(a, b)| (a ^ b).count_ones()).sum::<u32>();
    assert_eq!(bits(&flipped(1)), 10);
    assert!(flipped(1) == flipped(1));
    assert!(flipped(1) != flipped(2));
}

#[test]
fn a_rule_chooses_its_requests() {
    let bench = Bench::new();
    let rule = Rule::new(Fault::Status(503)).on([Operation::Get]).containing("/segments/").after(1).times(1);
    let rule = bench.proxy.add(rule);
    let got: Vec<_> = (0..4).map(|_| bench.get().expect("an answer").status).collect();
    assert_eq!(got, [200, 503, 200, 200]);
    assert_eq!(bench.put("/bucket/c/segments/2", b"x").expect("an answer").status, 200);
    assert_eq!(bench.proxy.applied(rule), 1);
    let latency = bench.proxy.add(Rule::new(Fault::Latency(Duration::from_millis(1))));
    assert_eq!(bench.get().expect("an answer").status, 200);
    bench.proxy.remove(latency);
    assert_eq!(bench.get().expect("an answer").status, 200);
    assert_eq!(bench.proxy.applied(latency), 1);
}

#[test]
fn latency_holds_a_request_back() {
    let bench = Bench::new();
    bench.proxy.add(Rule::new(Fault::Latency(Duration::from_secs(3600))).times(1));
    let (told, answers) = mpsc::channel();
    let address = bench.proxy.address();
    thread::spawn(move || told.send(ask(&mut connect(address), "GET", KEY, "", b"")));
    assert!(answers.recv_timeout(A_WHILE).is_err(), "it waits");
    assert_eq!(bench.requests(), 0);
    assert_eq!(bench.get().expect("others do not").status, 200);
}

#[test]
fn a_hang_answers_nothing_until_it_ends() {
    let bench = Bench::new();
    bench.proxy.hang(true);
    let (told, answers) = mpsc::channel();
    let address = bench.proxy.address();
    thread::spawn(move || told.send(ask(&mut connect(address), "GET", KEY, "", b"")));
    assert!(answers.recv_timeout(A_WHILE).is_err(), "connected and not answered");
    assert_eq!((bench.requests(), bench.proxy.counts().total().requests), (0, 1));
    bench.proxy.hang(false);
    let answer = answers.recv_timeout(PATIENCE).expect("it goes on").expect("an answer");
    assert!(answer.body == bench.object);

    bench.only(Fault::Hang);
    let mut stream = connect(address);
    stream.set_read_timeout(Some(A_WHILE)).expect("a timeout");
    assert_eq!(ask(&mut stream, "PUT", "/bucket/hung", "", &[1; 10_000]), Err(ErrorKind::WouldBlock));
    drop(stream);
    bench.counted(Operation::Put, Count { requests: 1, cut: 1, faults: 1, received_bytes: 10_000, ..Count::default() });
    assert_eq!(bench.requests(), 0);
}

#[test]
fn a_partition_refuses_new_connections_and_resets_open_ones() {
    let bench = Bench::new();
    let mut idle = connect(bench.proxy.address());
    assert_eq!(ask(&mut idle, "GET", KEY, "", b"").expect("an answer").status, 200);
    bench.proxy.hang(true);
    let address = bench.proxy.address();
    let (told, answers) = mpsc::channel();
    thread::spawn(move || told.send(ask(&mut connect(address), "GET", KEY, "", b"")));
    while bench.proxy.counts().total().requests < 2 {
        thread::sleep(Duration::from_millis(5));
    }
    for _ in 0..2 {
        bench.proxy.partition(true);
        let refused = TcpStream::connect(address).expect_err("nobody listens");
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    }
    let answer = answers.recv_timeout(PATIENCE).expect("it ended");
    assert_eq!(answer, Err(ErrorKind::ConnectionReset), "a request under way");
    assert_eq!(idle.read(&mut [0]).expect_err("reset").kind(), ErrorKind::ConnectionReset, "an idle connection");
    bench.proxy.partition(false);
    bench.proxy.hang(false);
    assert!(bench.get().expect("an answer").body == bench.object);
}

#[test]
fn a_server_that_is_gone_is_a_reset() {
    let gone = std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port");
    let proxy = Proxy::start(gone).expect("a proxy");
    assert_eq!(ask(&mut connect(proxy.address()), "GET", KEY, "", b""), Err(ErrorKind::ConnectionReset));
}

#[test]
fn a_stale_listing_is_the_first_one_until_all_is_cleared() {
    let bench = Bench::new();
    let list = |prefix: &str| {
        let path = format!("/bucket?list-type=2&prefix={prefix}");
        ask(&mut connect(bench.proxy.address()), "GET", &path, "", b"").expect("an answer").body
    };
    let change = |to: &'static [u8]| bench.origin.seen().objects.insert("/bucket".to_owned(), to.into());
    let rule = bench.only(Fault::StaleList);
    change(b"first");
    assert_eq!(list("a"), b"first");
    change(b"second");
    assert_eq!((list("a"), list("b"), bench.requests()), (b"first".to_vec(), b"second".to_vec(), 2));
    assert_eq!(bench.proxy.applied(rule), 1, "where there is something to be stale");
    assert_eq!(bench.get().expect("an answer").body, bench.object, "objects are as they are");
    bench.only(Fault::StaleList);
    assert_eq!(list("a"), b"second");
}
