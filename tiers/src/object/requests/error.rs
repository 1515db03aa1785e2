//! How a request ends, and what follows from how one attempt ended.

use std::error::Error as StdError;
use std::io;

use object_store::client::{HttpError, HttpErrorKind};

use super::watch::StatusError;
use crate::tier::Fault;

/// Texts of a store are cut to so many bytes.
const TEXT_BYTES: usize = 300;

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// There is no such object.
    #[error("no such object")]
    NotFound,
    /// A conditional put found an object of that name.
    #[error("the object exists")]
    Exists,
    /// The store refuses: credentials, permissions, no such bucket. The text is the store's.
    #[error("refused by the store: {0}")]
    Denied(String),
    /// The store tells to slow down, and did so until nothing was left to try.
    #[error("the store tells to slow down")]
    Throttled,
    /// The answer does not hold what was asked for: too short, too long, another range.
    #[error("the answer does not hold what was asked for")]
    Truncated,
    /// The object is larger than its reader allows.
    #[error("the object is larger than it may be")]
    TooLarge,
    /// The configuration's budget does not allow it now.
    #[error("over the budget")]
    OverBudget,
    /// The deadline passed.
    #[error("the deadline passed")]
    Deadline,
    /// The tier is shutting down.
    #[error("closed")]
    Closed,
    /// Anything else: the network, the server. The text is for people.
    #[error("{0}")]
    Failed(String),
}

impl RequestError {
    /// What a block ends with that needed this request.
    pub const fn fault(&self) -> Fault {
        match self {
            Self::NotFound => Fault::Absent,
            Self::Truncated | Self::TooLarge => Fault::Corrupt,
            Self::OverBudget => Fault::Full,
            Self::Deadline => Fault::Expired,
            Self::Closed => Fault::Closed,
            Self::Exists | Self::Denied(_) | Self::Throttled | Self::Failed(_) => Fault::Io,
        }
    }

    /// Whether it is an answer like any other, and no failure.
    pub(super) const fn is_answer(&self) -> bool {
        matches!(self, Self::NotFound | Self::Exists)
    }
}

impl From<&RequestError> for Fault {
    fn from(error: &RequestError) -> Self {
        error.fault()
    }
}

impl From<RequestError> for Fault {
    fn from(error: RequestError) -> Self {
        error.fault()
    }
}

/// What follows from a failed attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    /// What the request ends with if it is not tried again.
    pub error: RequestError,
    /// Whether another attempt may go better.
    pub again: bool,
    /// Whether the store needs fewer requests at once.
    pub slow_down: bool,
}

impl Failure {
    /// Nothing helps.
    pub const fn last(error: RequestError) -> Self {
        Self { error, again: false, slow_down: false }
    }

    const fn passing(error: RequestError) -> Self {
        Self { error, again: true, slow_down: false }
    }

    /// An answer that does not hold what was asked for.
    pub const fn truncated() -> Self {
        Self::passing(RequestError::Truncated)
    }

    /// Whether the store has said this, and not the way to it.
    pub const fn is_answer(&self) -> bool {
        !matches!(self.error, RequestError::Failed(_) | RequestError::Deadline | RequestError::Closed)
    }

    /// The same of a PUT, which asks for nothing that could be missing: a server that says so all the same (one whose parts are not
    /// all there) may do better next time.
    pub fn of_put(self) -> Self {
        match self.error {
            RequestError::NotFound => Self::passing(RequestError::Failed("404 in answer to a PUT".to_owned())),
            _ => self,
        }
    }

    /// No answer in the time of one attempt.
    pub fn silent() -> Self {
        Self { error: RequestError::Failed("no answer".to_owned()), again: true, slow_down: true }
    }

    /// Judges an error of the store. `reading`: of a GET, whose answer `object_store` checks in part.
    pub fn of(error: &object_store::Error, reading: bool) -> Self {
        use object_store::Error as E;
        match error {
            E::NotFound { .. } => Self::last(RequestError::NotFound),
            E::AlreadyExists { .. } | E::Precondition { .. } | E::NotModified { .. } => {
                Self::last(RequestError::Exists)
            }
            E::PermissionDenied { .. } | E::Unauthenticated { .. } => Self::last(RequestError::Denied(text(error))),
            E::Generic { .. } => Self::of_chain(error, reading),
            _ => Self::last(RequestError::Failed(text(error))),
        }
    }

    /// Looks for what is known about an error behind the wrappers of `object_store`, most of which have no names outside of it.
    fn of_chain(error: &object_store::Error, reading: bool) -> Self {
        let mut link: Option<&(dyn StdError + 'static)> = Some(error);
        while let Some(cause) = link {
            if let Some(status) = cause.downcast_ref::<StatusError>() {
                return Self::of_status(status);
            }
            if let Some(http) = cause.downcast_ref::<HttpError>() {
                // A status error is the source of one.
                if let Some(status) = http.source().and_then(|source| source.downcast_ref::<StatusError>()) {
                    return Self::of_status(status);
                }
                let error = RequestError::Failed(text(http));
                return Self { error, again: true, slow_down: http.kind() == HttpErrorKind::Timeout };
            }
            if cause.downcast_ref::<io::Error>().is_some() {
                return Self::passing(RequestError::Failed(text(error)));
            }
            link = cause.source();
        }
        // `object_store` checks that a ranged GET is answered by 206 and the range that was asked for, and that an object is not
        // shorter than the range's start. Its errors for that have no names.
        Self::passing(if reading { RequestError::Truncated } else { RequestError::Failed(text(error)) })
    }

    /// Judges an answer by its status and the store's word for it.
    pub fn of_status(error: &StatusError) -> Self {
        let failed = || RequestError::Failed(cut(&error.to_string()));
        match error.status {
            429 | 503 => Self { error: RequestError::Throttled, again: true, slow_down: true },
            401 | 403 | 404 => Self::last(RequestError::Denied(cut(&error.to_string()))),
            // Of concurrent conditional requests: one goes first, the others are to be sent again.
            409 => Self::passing(RequestError::Exists),
            416 => Self::passing(RequestError::Truncated),
            400 if error.code == "RequestTimeout" => Self::passing(failed()),
            408 | 500..=599 => Self::passing(failed()),
            _ => Self::last(failed()),
        }
    }
}

/// An error and its causes in one line, cut.
fn text(error: &dyn StdError) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        // Most wrappers say what they wrap.
        if !line.contains(&inner_text) {
            line.push_str(": ");
            line.push_str(&inner_text);
        }
        cause = inner.source();
    }
    cut(&line)
}

/// At most [`TEXT_BYTES`] of a text, on one line.
pub(super) fn cut(text: &str) -> String {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if line.len() <= TEXT_BYTES {
        return line;
    }
    let end = (0..=TEXT_BYTES).rev().find(|end| line.is_char_boundary(*end)).unwrap_or(0);
    format!("{}...", line.get(..end).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrapped(status: u16, code: &str) -> object_store::Error {
        let status = StatusError { status, code: code.to_owned(), message: "words".to_owned() };
        object_store::Error::Generic { store: "S3", source: Box::new(HttpError::new(HttpErrorKind::Unknown, status)) }
    }

    #[test]
    fn statuses_are_found_behind_wrappers() {
        let of = |status, code| Failure::of(&wrapped(status, code), true);
        assert_eq!(of(503, "SlowDown"), Failure { error: RequestError::Throttled, again: true, slow_down: true });
        assert_eq!(of(429, ""), of(503, ""));
        assert!(matches!(of(403, "AccessDenied"), Failure { error: RequestError::Denied(_), again: false, .. }));
        assert!(matches!(of(404, "NoSuchBucket"), Failure { error: RequestError::Denied(_), again: false, .. }));
        assert!(matches!(of(500, "InternalError"), Failure { error: RequestError::Failed(_), again: true, .. }));
        assert!(matches!(of(400, "InvalidArgument"), Failure { error: RequestError::Failed(_), again: false, .. }));
        assert!(of(400, "RequestTimeout").again);
        assert_eq!(of(416, "InvalidRange").error, RequestError::Truncated);
        assert_eq!(Failure::of(&wrapped(403, "SignatureDoesNotMatch"), false).error.fault(), Fault::Io);
    }

    #[test]
    fn long_texts_of_a_store_are_cut() {
        let long = format!("{}\n{}", "ä".repeat(200), "x".repeat(10_000));
        let line = cut(&long);
        assert!(line.len() <= TEXT_BYTES + 3 && !line.contains('\n') && line.ends_with("..."), "{line}");
    }
}
