//! Nodes that share a bucket: a real S3 server, the binary under test, and between them a proxy that counts and makes faults.
//! Whatever happens to nodes, server and bucket: no wrong block, every request ends, and hits come back.

#[path = "object/bucket.rs"]
mod bucket;
mod common;
#[path = "object/faults.rs"]
mod faults;
#[path = "object/node.rs"]
mod node;
#[path = "object/outages.rs"]
mod outages;
#[path = "object/sharing.rs"]
mod sharing;
#[path = "object/tls.rs"]
mod tls;

use serde_json::Value;

fn number(report: &Value, pointer: &str) -> u64 {
    report.pointer(pointer).and_then(Value::as_u64).unwrap_or_else(|| panic!("no number at {pointer} in {report:#}"))
}
