//! The ways to talk to the test's server.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper::{Method, Request};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path;
use object_store::signer::Signer as _;
use object_store::{ClientOptions, RetryConfig};

use crate::error::{Error, Result, system};

/// Access key of every server that this crate and its scripts start.
pub const ACCESS_KEY: &str = "terrace";
/// Secret key that goes with [`ACCESS_KEY`].
pub const SECRET_KEY: &str = "terrace-secret";
/// Region that requests are signed for. The servers take any.
pub const REGION: &str = "us-east-1";

/// What a test waits for at most before it calls a server dead.
const PATIENCE: Duration = Duration::from_secs(30);

/// A bare client of `bucket` at `endpoint` (`http://ADDRESS:PORT`): path style, no retries, so that a fault is seen
/// by who asked and is counted once.
///
/// # Errors
/// [`Error::Client`] when `endpoint` is no address.
pub fn client(endpoint: &str, bucket: &str) -> Result<AmazonS3> {
    // Reqwest asks for one even where nothing is encrypted. An error says that there is one already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let retry = RetryConfig { max_retries: 0, ..RetryConfig::default() };
    let store = AmazonS3Builder::new()
        .with_endpoint(endpoint)
        .with_bucket_name(bucket)
        .with_region(REGION)
        .with_access_key_id(ACCESS_KEY)
        .with_secret_access_key(SECRET_KEY)
        .with_virtual_hosted_style_request(false)
        .with_allow_http(true)
        .with_client_options(ClientOptions::new().with_allow_http(true).with_timeout(PATIENCE))
        .with_retry(retry)
        .build()?;
    Ok(store)
}

/// Creates `bucket`, which `object_store` cannot: a signed address and a plain PUT. One that is there already is kept.
pub(crate) fn create_bucket(address: SocketAddr, bucket: &str) -> Result<()> {
    let what = format!("PUT /{bucket}");
    let no_answer =
        |source: Box<dyn std::error::Error + Send + Sync>| Error::NoAnswer { address, what: what.clone(), source };
    let (status, body) = blocking(async {
        let store = client(&format!("http://{address}"), bucket)?;
        let url = store.signed_url(Method::PUT, &Path::default(), PATIENCE).await?;
        let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
        let request = Request::put(url.as_str()).body(Empty::new()).map_err(|error| no_answer(Box::new(error)))?;
        let answer = tokio::time::timeout(PATIENCE, client.request(request))
            .await
            .map_err(|error| no_answer(Box::new(error)))?
            .map_err(|error| no_answer(Box::new(error)))?;
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await.map_err(|error| no_answer(Box::new(error)))?.to_bytes();
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    })?;
    match status {
        200 | 409 => Ok(()),
        status => Err(Error::Refused { address, what, status, body }),
    }
}

/// Runs a future to its end on a thread of its own, so that the caller may itself be in a runtime.
fn blocking<T: Send>(future: impl Future<Output = Result<T>> + Send) -> Result<T> {
    thread::scope(|scope| {
        let run = || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .map_err(system("a runtime for a request"))?;
            runtime.block_on(future)
        };
        match scope.spawn(run).join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}
