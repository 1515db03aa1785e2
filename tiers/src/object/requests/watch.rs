//! What a server answered, kept through the layers of `object_store`.
//!
//! Its errors for other statuses than 404, 409, 412, 401 and 403 have no public type; with no retries of its own, all that is
//! left is text. So this stands between it and the HTTP client, and turns an answer that is no success into an error with a type, which is
//! found again in the chain of causes. It also keeps large error bodies out of memory.

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
    ReqwestConnector,
};

use super::error::{Failure, cut};

/// So much of an error's body is looked at.
const BODY_BYTES: usize = 16 << 10;

/// Kind of the error for an answer that tells to slow down.
pub(super) const THROTTLED: HttpErrorKind = HttpErrorKind::Timeout;
/// Kind of the error for an answer that will not change.
pub(super) const REFUSED: HttpErrorKind = HttpErrorKind::Decode;

/// An answer that is no success.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("status {status} {code} {message}")]
pub(crate) struct StatusError {
    /// HTTP status.
    pub status: u16,
    /// The store's word for it (`Code` of the error document of the S3 API); may be empty.
    pub code: String,
    /// The store's text; may be empty.
    pub message: String,
}

/// Connects as `object_store` does by itself, and watches the answers.
#[derive(Debug, Default)]
pub(crate) struct WatchedConnector {
    inner: ReqwestConnector,
}

impl HttpConnector for WatchedConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Watched(self.inner.connect(options)?)))
    }
}

#[derive(Debug)]
struct Watched(HttpClient);

#[async_trait]
impl HttpService for Watched {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let response = self.0.execute(request).await?;
        if response.status().is_success() {
            return Ok(response);
        }
        let (parts, body) = response.into_parts();
        let body = beginning(body).await;
        let error = StatusError::read(parts.status.as_u16(), &body);
        match error.status {
            // A bucket that is not there is no object that is not there.
            404 if error.code == "NoSuchBucket" => {}
            304 | 404 | 412 => return Ok(HttpResponse::from_parts(parts, body.into())),
            _ => {}
        }
        Err(HttpError::new(kind(&error), error))
    }
}

/// What the retry policy of an upload's parts ([`super::upload`]) gets to see of a status: nothing else does.
fn kind(error: &StatusError) -> HttpErrorKind {
    match Failure::of_status(error) {
        Failure { slow_down: true, .. } => THROTTLED,
        Failure { again: true, .. } => HttpErrorKind::Interrupted,
        _ => REFUSED,
    }
}

/// What there is of a body, up to [`BODY_BYTES`]. A body that breaks is as good as its beginning.
async fn beginning(body: HttpResponseBody) -> Bytes {
    let mut stream = body.bytes_stream();
    let mut bytes = BytesMut::new();
    while let Some(Ok(chunk)) = stream.next().await {
        let room = BODY_BYTES.saturating_sub(bytes.len());
        bytes.extend_from_slice(chunk.get(..room).unwrap_or(&chunk));
        if bytes.len() >= BODY_BYTES {
            break;
        }
    }
    bytes.freeze()
}

impl StatusError {
    /// From an error document: <https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html>. Other fields are left out: some hold
    /// what was signed.
    fn read(status: u16, body: &[u8]) -> Self {
        let text = String::from_utf8_lossy(body);
        let field = |open: &str, close: &str| {
            let value =
                text.split_once(open).and_then(|(_, rest)| rest.split_once(close)).map_or("", |(value, _)| value);
            cut(value)
        };
        Self { status, code: field("<Code>", "</Code>"), message: field("<Message>", "</Message>") }
    }
}

/// What a client of this crate's gives for an answer of this status, without an error document: for stores that simulate a bucket.
pub fn status_error(status: u16) -> object_store::Error {
    let error = StatusError { status, code: String::new(), message: String::new() };
    if status == 404 {
        // The one that passes through to `object_store`'s own type.
        return object_store::Error::NotFound { path: String::new(), source: Box::new(error) };
    }
    let error = HttpError::new(kind(&error), error);
    object_store::Error::Generic { store: "S3", source: Box::new(error) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_documents_are_read_and_the_rest_is_left_out() {
        let body = b"<?xml version=\"1.0\"?><Error><Code>SignatureDoesNotMatch</Code><Message>It does not.</Message>\
            <StringToSign>AWS4-HMAC-SHA256 hidden</StringToSign></Error>";
        let error = StatusError::read(403, body);
        assert_eq!(error.to_string(), "status 403 SignatureDoesNotMatch It does not.");
        for odd in [&b""[..], b"<Code>", b"</Code><Code>", b"\xff\xfe<Code>\xff</Code>", b"plain words"] {
            StatusError::read(500, odd);
        }
    }
}
