//! One request: counted, delayed, spoiled, passed on.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use hyper::header::{
    CONNECTION, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, RANGE, TE,
    TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode, Version};
use object_store::path::Path;
use object_store::signer::Signer as _;

use super::Shared;
use super::body::{Answer, Body, End, Plan, drain, full, pass, upload};
use super::counts::Ticket;
use super::link::Cut;
use super::operation::Seen;
use super::rule::{Decision, Fault};
use crate::client::client;

/// What belongs to one connection and not to the message (RFC 9110, 7.6.1).
const OF_THE_CONNECTION: [HeaderName; 6] =
    [CONNECTION, HeaderName::from_static("keep-alive"), TE, TRAILER, TRANSFER_ENCODING, UPGRADE];
/// Listings that are remembered.
const MAX_LISTINGS: usize = 4_096;
/// How long the signature of a request of our own holds.
const SIGNED_FOR: Duration = Duration::from_secs(60);

/// Answers one request. What ends without an answer resets its connection through `cut` and does not return.
pub(super) async fn forward(
    shared: Arc<Shared>,
    cut: Cut,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let seen = Seen::of(request.method(), request.uri(), request.headers());
    let ticket = shared.tallies.arrived(&seen);
    let decision = shared.decide(&seen);
    (0..decision.latencies).for_each(|_| ticket.fault());
    if !decision.latency.is_zero() {
        tokio::time::sleep(decision.latency).await;
    }
    pass(&mut shared.hang.subscribe()).await;
    let work = Work { shared, cut, ticket, decision, target: seen.target };
    Ok(work.answer(request).await)
}

/// A request under way.
struct Work {
    shared: Arc<Shared>,
    cut: Cut,
    ticket: Ticket,
    decision: Decision,
    target: String,
}

impl Work {
    async fn answer(mut self, request: Request<Incoming>) -> Response<Body> {
        match self.decision.fault.map(|(_, fault)| fault) {
            Some(Fault::ResetBefore) => {
                self.made();
                self.cut.and_wait().await
            }
            Some(Fault::Status(status)) => {
                // The client reads no answer before it has sent its body.
                if !drain(request.into_body(), &self.ticket.meter()).await {
                    return self.cut.and_wait().await;
                }
                self.made();
                self.refuse(status)
            }
            Some(Fault::Hang) => {
                self.made();
                drain(request.into_body(), &self.ticket.meter()).await;
                std::future::pending().await
            }
            Some(Fault::StatusAfter(status)) => {
                self.have_done(request).await;
                self.made();
                self.refuse(status)
            }
            Some(Fault::ResetAfter) => {
                self.have_done(request).await;
                self.made();
                self.cut.and_wait().await
            }
            Some(Fault::StaleList) => self.first_listing(request).await,
            Some(fault @ (Fault::WrongRange { .. } | Fault::RangeIgnored)) => {
                let asked = request.headers().get(RANGE).cloned();
                let response = self.pass_on(request).await;
                match (response.status(), asked) {
                    (StatusCode::PARTIAL_CONTENT, Some(_)) => self.other_range(response, fault).await,
                    _ => self.send(response, Plan::Whole),
                }
            }
            _ => {
                let response = self.pass_on(request).await;
                self.spoil(response)
            }
        }
    }

    /// The server's answer. One that cannot be had resets the connection: this proxy has no voice of its own.
    async fn pass_on(&self, request: Request<Incoming>) -> Response<Incoming> {
        let (parts, body) = request.into_parts();
        let length = length_of(&parts.headers);
        let cut_at = match self.decision.fault {
            Some((_, Fault::ResetInUpload)) if !body.is_end_stream() => {
                self.made();
                Some((length.unwrap_or_default() / 2, self.cut.clone()))
            }
            _ => None,
        };
        let body = upload(body, self.ticket.meter(), self.shared.hang.subscribe(), cut_at);
        self.send_upstream(parts, body).await
    }

    /// Lets the server do it, to the end of an answer that nobody sees.
    async fn have_done(&self, request: Request<Incoming>) {
        let mut body = self.pass_on(request).await.into_body();
        while let Some(Ok(_)) = body.frame().await {}
    }

    /// What this listing was answered first; that is this answer where none was seen.
    async fn first_listing(mut self, request: Request<Incoming>) -> Response<Body> {
        let asked = request.uri().to_string();
        let known = self.shared.listings().get(&asked).cloned();
        if let Some(known) = known {
            self.made();
            self.ticket.answered(StatusCode::OK.as_u16());
            self.ticket.sent(known.len());
            self.ticket.complete();
            let mut response = Response::new(full(known));
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/xml"));
            return response;
        }
        let response = self.pass_on(request).await;
        if response.status() != StatusCode::OK {
            return self.send(response, Plan::Whole);
        }
        let Ok(body) = response.into_body().collect().await else {
            return self.cut.and_wait().await;
        };
        let bytes = body.to_bytes();
        let mut listings = self.shared.listings();
        if listings.len() < MAX_LISTINGS {
            listings.insert(asked, bytes.clone());
        }
        drop(listings);
        self.ticket.answered(StatusCode::OK.as_u16());
        self.ticket.sent(bytes.len());
        self.ticket.complete();
        let mut response = Response::new(full(bytes));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/xml"));
        response
    }

    async fn send_upstream(&self, mut parts: Parts, body: Body) -> Response<Incoming> {
        // The path as it came, byte for byte, and Host as the client has it: both are signed.
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        let Ok(uri) = format!("http://{}{path}", self.shared.upstream).parse() else {
            return self.cut.and_wait().await;
        };
        parts.uri = uri;
        parts.version = Version::HTTP_11;
        strip(&mut parts.headers);
        match self.shared.client.request(Request::from_parts(parts, body)).await {
            Ok(response) => response,
            Err(_) => self.cut.and_wait().await,
        }
    }

    /// The same object, read with a range that the client did not ask for. Its request cannot be used for that, the
    /// range is signed: the proxy asks with a signature of its own.
    async fn other_range(self, response: Response<Incoming>, fault: Fault) -> Response<Body> {
        let asked = response.headers().get(CONTENT_RANGE).cloned();
        let range = asked.as_ref().and_then(|value| value.to_str().ok()).and_then(ContentRange::parse);
        let (Some(asked), Some(range)) = (asked, range) else {
            return self.send(response, Plan::Whole);
        };
        let (range, honest) = match fault {
            Fault::WrongRange { honest } => match range.another() {
                Some(other) => (Some(other), honest),
                // An object of one byte has no other range.
                None => return self.send(response, Plan::Whole),
            },
            _ => (None, true),
        };
        drop(response);
        let Some(parts) = self.signed(range).await else {
            return self.cut.and_wait().await;
        };
        let mut response = self.send_upstream(parts, full(bytes::Bytes::new())).await;
        if !honest {
            response.headers_mut().insert(CONTENT_RANGE, asked);
        }
        self.made();
        self.send(response, Plan::Whole)
    }

    async fn signed(&self, range: Option<ContentRange>) -> Option<Parts> {
        let (bucket, key) = self.target.trim_start_matches('/').split_once('/')?;
        let store = client(&format!("http://{}", self.shared.upstream), bucket).ok()?;
        let url = store.signed_url(Method::GET, &Path::parse(key).ok()?, SIGNED_FOR).await.ok()?;
        let mut request = Request::get(url.as_str()).header(HOST, self.shared.upstream.to_string());
        if let Some(range) = range {
            request = request.header(RANGE, format!("bytes={}-{}", range.first, range.last));
        }
        Some(request.body(()).ok()?.into_parts().0)
    }

    /// Passes the answer on with its body spoiled, where the decision says so.
    fn spoil(self, mut response: Response<Incoming>) -> Response<Body> {
        if response.body().is_end_stream() {
            return self.send(response, Plan::Whole);
        }
        let length = length_of(response.headers()).or_else(|| response.body().size_hint().exact());
        // Unknown lengths are those of lists and errors: half of them is the first hundred bytes.
        let half = length.unwrap_or(200) / 2;
        let end = |end| Plan::End { at: half, end };
        let plan = match self.decision.fault {
            Some((_, Fault::ResetInBody)) => end(End::Reset),
            Some((_, Fault::ShortBody)) => end(End::Close),
            Some((_, Fault::Truncated)) => {
                if length.is_some() {
                    response.headers_mut().insert(CONTENT_LENGTH, half.into());
                }
                end(End::Complete)
            }
            Some((_, Fault::WrongBytes { bits })) => Plan::flip(bits, length.unwrap_or(200), self.decision.seed),
            _ => Plan::Whole,
        };
        if !matches!(plan, Plan::Whole) {
            self.made();
        }
        self.send(response, plan)
    }

    fn send(self, response: Response<Incoming>, plan: Plan) -> Response<Body> {
        let (mut parts, body) = response.into_parts();
        strip(&mut parts.headers);
        parts.version = Version::HTTP_11;
        self.ticket.answered(parts.status.as_u16());
        let hang = self.shared.hang.subscribe();
        let length = length_of(&parts.headers);
        let answer = Answer { body, plan, length, ticket: self.ticket, hang, cut: self.cut };
        Response::from_parts(parts, answer.into_body())
    }

    /// An S3 error of the proxy's making.
    fn refuse(&mut self, status: u16) -> Response<Body> {
        let code = match status {
            403 => "AccessDenied",
            404 => "NoSuchKey",
            409 => "OperationAborted",
            412 => "PreconditionFailed",
            416 => "InvalidRange",
            500 => "InternalError",
            503 => "SlowDown",
            _ => "TerraceTest",
        };
        let xml = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>{code}</Code><Message>Made by the test's proxy</Message><Resource></Resource><RequestId>0</RequestId></Error>"
        );
        self.ticket.answered(status);
        self.ticket.sent(xml.len());
        self.ticket.complete();
        let mut response = Response::new(full(xml));
        *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/xml"));
        response
    }

    fn made(&self) {
        self.ticket.fault();
        if let Some((id, _)) = self.decision.fault {
            self.shared.made(id);
        }
    }
}

fn strip(headers: &mut HeaderMap) {
    for name in &OF_THE_CONNECTION {
        headers.remove(name);
    }
}

fn length_of(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// `bytes FIRST-LAST/TOTAL`, both ends within the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ContentRange {
    first: u64,
    last: u64,
    total: u64,
}

impl ContentRange {
    fn parse(text: &str) -> Option<Self> {
        let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
        let (first, last) = range.split_once('-')?;
        let (first, last, total) = (first.parse().ok()?, last.parse().ok()?, total.parse().ok()?);
        (first <= last && last < total).then_some(Self { first, last, total })
    }

    /// A range as long that begins elsewhere: the next, the one before, the first or last that fits; of an object that
    /// was asked for whole, all but its first byte.
    fn another(self) -> Option<Self> {
        let length = self.last - self.first + 1;
        let from = |first: u64| Self { first, last: first + length - 1, total: self.total };
        if self.total - self.last > length {
            Some(from(self.first + length))
        } else if self.first >= length {
            Some(from(self.first - length))
        } else if self.first > 0 {
            Some(from(0))
        } else if length < self.total {
            Some(from(self.total - length))
        } else {
            (length > 1).then_some(Self { first: 1, ..self })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_range_is_another_and_within_the_object() {
        assert_eq!(ContentRange::parse("bytes 0-9/100"), Some(ContentRange { first: 0, last: 9, total: 100 }));
        for text in ["bytes 0-9/*", "bytes 9-0/100", "bytes 0-100/100", "0-9/100", "bytes -9/100"] {
            assert_eq!(ContentRange::parse(text), None, "{text}");
        }
        for total in 1..12 {
            for first in 0..total {
                for last in first..total {
                    let range = ContentRange { first, last, total };
                    match range.another() {
                        None => assert_eq!(total, 1),
                        Some(other) => {
                            assert!(other.first != first && other.first <= other.last && other.last < total);
                            let whole = first == 0 && last + 1 == total;
                            assert_eq!(other.last - other.first + 1, last - first + u64::from(!whole));
                        }
                    }
                }
            }
        }
    }
}
