//! A bucket behind TLS whose certificate is signed by an authority of one's own.

use std::path::Path;
use std::process::Command;

use terrace_test_s3::SeaweedFs;

use crate::bucket::BUCKET;
use crate::node::{Outcome, Setup};
use crate::number;

const TRAFFIC: &str = "--seed 7 --limit 60 --concurrency 1";

/// Runs openssl in `dir`.
fn openssl(dir: &Path, arguments: &str) {
    let mut command = Command::new("openssl");
    let output = command.args(arguments.split_whitespace()).current_dir(dir).output();
    let output = output.expect("openssl: install the package of that name");
    assert!(output.status.success(), "openssl {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// An authority, `NAME.pem`.
fn authority(dir: &Path, name: &str) {
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(dir, &format!("req -x509 {key} -keyout {name}.key -out {name}.pem -days 2 -subj /CN={name}"));
}

/// `server.pem` and `server.key` for the loopback address, signed by an authority.
fn server(dir: &Path, authority: &str) {
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(dir, &format!("req {key} -keyout server.key -out server.csr -subj /CN=server"));
    std::fs::write(dir.join("extensions"), "subjectAltName = IP:127.0.0.1\n").expect("written");
    let signed_by = format!("-CA {authority}.pem -CAkey {authority}.key -CAcreateserial");
    openssl(dir, &format!("x509 -req -in server.csr {signed_by} -days 2 -extfile extensions -out server.pem"));
}

#[test]
fn an_authority_of_ones_own_is_trusted_and_no_other() {
    let place = tempfile::tempdir().expect("a directory");
    let dir = place.path();
    ["ours", "theirs"].iter().for_each(|name| authority(dir, name));
    server(dir, "ours");
    let bucket = SeaweedFs::start_with_tls(dir.join("server"), dir).expect("a server");
    bucket.create_bucket(BUCKET).expect("a bucket");
    let run = |ca_file: Option<&str>| -> Outcome {
        let ca_file = ca_file.map(|name| format!("ca_file = {:?}\n", dir.join(name)));
        let tier = format!("linger = \"5ms\"\npublish_interval = \"20ms\"\n{}", ca_file.unwrap_or_default());
        Setup { tier, primary_blocks: 200, ..Setup::default() }.start_at(&bucket.tls_endpoint(), TRAFFIC).end()
    };
    let trusted = run(Some("ours.pem"));
    assert!(trusted.external_hits() > 0, "{:#}; {}", trusted.report, trusted.log);
    // Nothing is stored or read through a connection that is not trusted, and the log says what is wrong with it.
    for ca_file in [Some("theirs.pem"), None] {
        let refused = run(ca_file);
        assert_eq!(refused.external_hits(), 0, "{:#}", refused.report);
        assert_eq!(number(&refused.report, "/tiers/0/stored"), 0, "{:#}", refused.report);
        assert!(refused.log.contains("certificate"), "{}", refused.log);
    }
}
