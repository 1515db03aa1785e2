//! A real server through the proxy: what Terrace asks of S3, and the faults that need its signatures.

use std::ops::Range;

use futures_util::{StreamExt as _, TryStreamExt as _};
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectStore, ObjectStoreExt as _, PutMode, PutMultipartOptions, PutPayload};
use terrace_test_s3::{Fault, Operation, Proxy, Rule, SeaweedFs, client};

const PART_BYTES: usize = 5 << 20;

fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|i| (i * 31 % 251) as u8).collect()
}

async fn range(store: &impl ObjectStore, key: &Path, range: Range<u64>) -> object_store::Result<(Range<u64>, Vec<u8>)> {
    let options = GetOptions { range: Some(GetRange::Bounded(range)), ..GetOptions::default() };
    let got = store.get_opts(key, options).await?;
    Ok((got.range.clone(), got.bytes().await?.to_vec()))
}

#[tokio::test]
async fn a_real_server_through_the_proxy() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut server = SeaweedFs::start(dir.path()).expect("a server");
    server.create_bucket("terrace").expect("a bucket");
    server.create_bucket("terrace").expect("it is there already");
    let proxy = Proxy::start(server.address()).expect("a proxy");
    let store = client(&proxy.endpoint(), "terrace").expect("a client");

    // Put, conditional put, whole and ranged get, list.
    let object = bytes(300_000);
    let key = Path::from("c/segments/first one");
    store.put(&key, PutPayload::from(object.clone())).await.expect("stored");
    let again = store.put_opts(&key, PutPayload::from_static(b"x"), PutMode::Create.into()).await;
    assert!(matches!(again, Err(object_store::Error::AlreadyExists { .. })), "{again:?}");
    let log = Path::from("c/log/1");
    store.put_opts(&log, PutPayload::from_static(b"log"), PutMode::Create.into()).await.expect("stored");
    let got = store.get(&key).await.expect("there").bytes().await.expect("whole");
    assert!(got == object);
    assert_eq!(range(&store, &key, 1000..2000).await.expect("there"), (1000..2000, object[1000..2000].to_vec()));
    let listed: Vec<_> = store.list(Some(&Path::from("c/log"))).try_collect().await.expect("listed");
    assert_eq!(listed.iter().map(|found| &found.location).collect::<Vec<_>>(), [&log]);

    // Multipart.
    let large = bytes(2 * PART_BYTES + 1);
    let key_of_large = Path::from("c/segments/large");
    let mut upload = store.put_multipart_opts(&key_of_large, PutMultipartOptions::default()).await.expect("an upload");
    for part in large.chunks(PART_BYTES) {
        upload.put_part(PutPayload::from(part.to_vec())).await.expect("a part");
    }
    upload.complete().await.expect("complete");
    let got = store.get(&key_of_large).await.expect("there").bytes().await.expect("whole");
    assert!(got == large);

    // The server's side of all that, as the proxy saw it.
    let counts = proxy.counts();
    let of = |operation| counts.of(operation).requests;
    assert_eq!((of(Operation::Put), of(Operation::Get), of(Operation::List)), (3, 3, 1));
    assert_eq!((of(Operation::CreateUpload), of(Operation::UploadPart), of(Operation::CompleteUpload)), (1, 3, 1));
    assert_eq!(counts.of(Operation::UploadPart).received_bytes, large.len() as u64);
    assert_eq!(counts.under("/segments/").of(Operation::Get).sent_bytes, 301_000 + large.len() as u64);
    assert_eq!(counts.under("/terrace/c/log/").total().requests, 2);
    assert_eq!(counts.of(Operation::Put).refused, 1);
    assert_eq!(counts.total().cut, 0);

    // Ranges that are not those asked for.
    proxy.add(Rule::new(Fault::WrongRange { honest: false }).times(1));
    assert_eq!(range(&store, &key, 1000..2000).await.expect("served"), (1000..2000, object[2000..3000].to_vec()));
    proxy.clear();
    let honest = proxy.add(Rule::new(Fault::WrongRange { honest: true }).times(1));
    let got = range(&store, &key, 0..100_000).await;
    assert!(got.is_err(), "object_store compares Content-Range: {got:?}");
    let ignored = proxy.add(Rule::new(Fault::RangeIgnored).times(1));
    let got = range(&store, &key, 0..1000).await;
    assert!(got.is_err(), "object_store refuses 200 for a range: {got:?}");
    assert_eq!((proxy.applied(honest), proxy.applied(ignored)), (1, 1));
    proxy.clear();

    // Killed, what was acknowledged is there again at the same address.
    server.kill().expect("killed");
    assert!(store.get(&log).await.is_err());
    server.restart().expect("started again");
    let got = store.get(&key).await.expect("there").bytes().await.expect("whole");
    assert!(got == object);

    // Stopped, it answers nobody; then it goes on.
    server.stop().expect("stopped");
    let mut waits = std::pin::pin!(store.get(&log));
    let early = tokio::time::timeout(std::time::Duration::from_millis(300), &mut waits).await;
    assert!(early.is_err(), "a stopped server does not answer");
    server.cont().expect("continued");
    assert_eq!(waits.await.expect("there").bytes().await.expect("whole"), "log");
    let all: Vec<_> = store.list(None).collect().await;
    assert_eq!(all.len(), 3);
}
