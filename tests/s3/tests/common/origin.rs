//! A server that is no more than the proxy's tests need: objects in memory, ranges, no signatures.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::thread;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::header::{CONTENT_RANGE, HOST, RANGE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;

/// What the server has and has seen.
#[derive(Default)]
pub struct Seen {
    /// By path.
    pub objects: BTreeMap<String, Bytes>,
    /// `METHOD /path` of every request that arrived whole.
    pub requests: Vec<String>,
    /// `METHOD /path` of every request whose body broke off.
    pub broken: Vec<String>,
    /// Host header of the last one.
    pub host: String,
}

/// Runs until the test ends.
pub struct Origin {
    pub address: SocketAddr,
    pub seen: Arc<Mutex<Seen>>,
}

impl Origin {
    pub fn start() -> Self {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        listener.set_nonblocking(true).expect("non-blocking");
        let address = listener.local_addr().expect("an address");
        let seen = Arc::new(Mutex::new(Seen::default()));
        let shared = seen.clone();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async move {
                let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
                while let Ok((stream, _)) = listener.accept().await {
                    let shared = shared.clone();
                    let service = service_fn(move |request| answer(shared.clone(), request));
                    tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
                }
            });
        });
        Self { address, seen }
    }

    pub fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().expect("no panic while it was held")
    }
}

async fn answer(shared: Arc<Mutex<Seen>>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let path = request.uri().path().to_owned();
    let name = format!("{} {path}", request.method());
    let text = |name| request.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let (host, range) = (text(HOST), text(RANGE));
    let method = request.method().clone();
    let body = request.into_body().collect().await;
    let mut seen = shared.lock().expect("no panic while it was held");
    let Ok(body) = body else {
        seen.broken.push(name);
        return Ok(status(StatusCode::BAD_REQUEST));
    };
    seen.requests.push(name);
    seen.host = host.unwrap_or_default();
    if method == Method::PUT {
        seen.objects.insert(path, body.to_bytes());
        return Ok(status(StatusCode::OK));
    }
    let Some(object) = seen.objects.get(&path) else { return Ok(status(StatusCode::NOT_FOUND)) };
    let bounds = range.as_deref().and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
    let Some((first, last)) = bounds else { return Ok(Response::new(Full::new(object.clone()))) };
    let (first, last): (usize, usize) = (first.parse().expect("a number"), last.parse().expect("a number"));
    let mut response = Response::new(Full::new(object.slice(first..=last)));
    *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    let value = format!("bytes {first}-{last}/{}", object.len()).parse().expect("a value");
    response.headers_mut().insert(CONTENT_RANGE, value);
    Ok(response)
}

fn status(status: StatusCode) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = status;
    response
}
