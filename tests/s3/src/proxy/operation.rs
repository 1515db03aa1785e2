//! Which S3 operation a request is, and on what.

use std::fmt;

use hyper::header::{HeaderMap, RANGE};
use hyper::{Method, Uri};

/// An S3 operation, as far as Terrace's counts and faults tell them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// GetObject, whole or a range.
    Get,
    /// HeadObject.
    Head,
    /// PutObject, conditional or not.
    Put,
    /// CopyObject, UploadPartCopy.
    Copy,
    /// DeleteObject.
    Delete,
    /// DeleteObjects.
    DeleteMany,
    /// ListObjects, either version.
    List,
    /// CreateMultipartUpload.
    CreateUpload,
    /// UploadPart.
    UploadPart,
    /// CompleteMultipartUpload.
    CompleteUpload,
    /// AbortMultipartUpload.
    AbortUpload,
    /// ListMultipartUploads.
    ListUploads,
    /// ListParts.
    ListParts,
    /// Whatever else is asked of a bucket: create, head, location, life cycle.
    Bucket,
    /// Anything else.
    Other,
}

impl Operation {
    /// Name in JSON and in messages: `upload_part`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Head => "head",
            Self::Put => "put",
            Self::Copy => "copy",
            Self::Delete => "delete",
            Self::DeleteMany => "delete_many",
            Self::List => "list",
            Self::CreateUpload => "create_upload",
            Self::UploadPart => "upload_part",
            Self::CompleteUpload => "complete_upload",
            Self::AbortUpload => "abort_upload",
            Self::ListUploads => "list_uploads",
            Self::ListParts => "list_parts",
            Self::Bucket => "bucket",
            Self::Other => "other",
        }
    }

    /// Its answer has a body when all goes well.
    pub(super) fn answers_with_body(self) -> bool {
        !matches!(
            self,
            Self::Head | Self::Put | Self::Delete | Self::UploadPart | Self::AbortUpload | Self::Bucket | Self::Other
        )
    }

    /// Its request brings an object's bytes.
    pub(super) fn uploads(self) -> bool {
        matches!(self, Self::Put | Self::UploadPart)
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A request as rules and counts see it.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub operation: Operation,
    /// `/bucket/key`, decoded; of a list `/bucket/prefix`.
    pub target: String,
    /// It asks for a range.
    pub ranged: bool,
}

impl Seen {
    pub fn of(method: &Method, uri: &Uri, headers: &HeaderMap) -> Self {
        let query: Vec<(&str, &str)> = uri
            .query()
            .unwrap_or_default()
            .split('&')
            .filter(|pair| !pair.is_empty())
            .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
            .collect();
        let value = |name: &str| query.iter().find(|(key, _)| *key == name).map(|(_, value)| *value);
        let has = |name: &str| value(name).is_some();
        let path = uri.path();
        let (bucket, key) = path.trim_start_matches('/').split_once('/').unwrap_or((path.trim_start_matches('/'), ""));
        let copies = headers.contains_key("x-amz-copy-source");
        let operation = if key.is_empty() {
            // What else can be asked of a bucket is asked by a bare name: `?location`, `?versioning`.
            let lists = query.iter().all(|(name, _)| LIST_PARAMETERS.contains(name) || name.starts_with("X-Amz-"));
            match *method {
                Method::GET if has("uploads") => Operation::ListUploads,
                Method::GET if lists && !bucket.is_empty() => Operation::List,
                Method::POST if has("delete") => Operation::DeleteMany,
                _ => Operation::Bucket,
            }
        } else {
            match *method {
                Method::GET if has("uploadId") => Operation::ListParts,
                Method::GET => Operation::Get,
                Method::HEAD => Operation::Head,
                Method::PUT if copies => Operation::Copy,
                Method::PUT if has("uploadId") => Operation::UploadPart,
                Method::PUT => Operation::Put,
                Method::POST if has("uploads") => Operation::CreateUpload,
                Method::POST if has("uploadId") => Operation::CompleteUpload,
                Method::DELETE if has("uploadId") => Operation::AbortUpload,
                Method::DELETE => Operation::Delete,
                _ => Operation::Other,
            }
        };
        let target = if key.is_empty() {
            format!("/{}/{}", decoded(bucket, false), decoded(value("prefix").unwrap_or_default(), true))
        } else {
            decoded(path, false)
        };
        Self { operation, target, ranged: headers.contains_key(RANGE) }
    }
}

/// Query parameters of ListObjects and ListObjectsV2.
const LIST_PARAMETERS: &[&str] = &[
    "list-type",
    "prefix",
    "delimiter",
    "marker",
    "max-keys",
    "start-after",
    "continuation-token",
    "encoding-type",
    "fetch-owner",
];

/// Undoes percent-encoding; in queries `+` is a space. What is no UTF-8 is replaced.
fn decoded(text: &str, query: bool) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let digits = tail.get(..2).and_then(|pair| std::str::from_utf8(pair).ok());
        match (first, digits.and_then(|pair| u8::from_str_radix(pair, 16).ok())) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = tail.get(2..).unwrap_or_default();
                continue;
            }
            (b'+', _) if query => bytes.push(b' '),
            _ => bytes.push(first),
        }
        rest = tail;
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(method: Method, uri: &str) -> (Operation, String) {
        let seen = Seen::of(&method, &uri.parse().expect("a URI"), &HeaderMap::new());
        (seen.operation, seen.target)
    }

    #[test]
    fn operations_are_told_apart() {
        for (method, uri, operation, target) in [
            (Method::GET, "/b/p/log/1", Operation::Get, "/b/p/log/1"),
            (Method::HEAD, "/b/a%2Fb%20c", Operation::Head, "/b/a/b c"),
            (Method::GET, "/b?list-type=2&prefix=p%2Flog%2F&start-after=p%2F1", Operation::List, "/b/p/log/"),
            (Method::GET, "/b/?list-type=2", Operation::List, "/b/"),
            (Method::GET, "/b?location", Operation::Bucket, "/b/"),
            (Method::GET, "/b?uploads&prefix=x", Operation::ListUploads, "/b/x"),
            (Method::GET, "/b/k?uploadId=1", Operation::ListParts, "/b/k"),
            (Method::PUT, "/b", Operation::Bucket, "/b/"),
            (Method::PUT, "/b/k", Operation::Put, "/b/k"),
            (Method::PUT, "/b/k?partNumber=1&uploadId=2", Operation::UploadPart, "/b/k"),
            (Method::POST, "/b/k?uploads", Operation::CreateUpload, "/b/k"),
            (Method::POST, "/b/k?uploads=", Operation::CreateUpload, "/b/k"),
            (Method::POST, "/b/k?uploadId=2", Operation::CompleteUpload, "/b/k"),
            (Method::DELETE, "/b/k?uploadId=2", Operation::AbortUpload, "/b/k"),
            (Method::DELETE, "/b/k", Operation::Delete, "/b/k"),
            (Method::POST, "/b?delete", Operation::DeleteMany, "/b/"),
            (Method::GET, "/", Operation::Bucket, "//"),
            (Method::GET, "/b/100%", Operation::Get, "/b/100%"),
        ] {
            assert_eq!(seen(method.clone(), uri), (operation, target.to_owned()), "{method} {uri}");
        }
    }
}
