//! Why a call is refused: a code and a text.

use terrace_kernels::CopyError;

use crate::abi::code;

/// What a call answers in place of OK.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub code: i32,
    pub text: String,
}

impl Refusal {
    pub fn new(code: i32, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    pub fn invalid(text: impl Into<String>) -> Self {
        Self::new(code::INVALID, text)
    }

    pub fn unsupported(text: impl Into<String>) -> Self {
        Self::new(code::UNSUPPORTED, text)
    }

    pub fn handle(what: &str, handle: u64) -> Self {
        Self::new(code::HANDLE, format!("{handle} is no {what}, or none any more"))
    }
}

/// The code of an engine's error.
pub(crate) const fn code_of(error: &CopyError) -> i32 {
    match error {
        CopyError::QueueFull { .. } => code::FULL,
        CopyError::Invalid(_) => code::INVALID,
        CopyError::Closed => code::HANDLE,
        CopyError::Unsupported(_) => code::UNSUPPORTED,
        CopyError::MissingLibrary { .. } => code::MISSING_LIBRARY,
        CopyError::OutOfMemory(_) => code::OUT_OF_MEMORY,
        CopyError::DeviceLost(_) => code::DEVICE_LOST,
        CopyError::Failed(_) => code::FAILED,
    }
}

impl From<CopyError> for Refusal {
    fn from(error: CopyError) -> Self {
        Self::new(code_of(&error), error.to_string())
    }
}
