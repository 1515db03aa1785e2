//! What a connector call answers when it cannot do what it was asked. The kind says what the caller must do.

use terrace_kernels::CopyError;
use terrace_tiering::TieringError;

/// Why a connector call was refused. A refused call has changed nothing.
#[derive(Debug, thiserror::Error)]
pub enum ConnectorError {
    /// Not now: make the same call again in a later step.
    #[error("try again in a later step: {0}")]
    Retry(String),
    /// The call contradicts the contract; the same call will fail again.
    #[error("invalid call: {0}")]
    Invalid(String),
    /// Bytes or tables are not what they must be. The connector is no longer to be trusted.
    #[error("corrupt: {0}")]
    Corrupt(String),
    /// A bound is reached: end other requests, or raise the limit in the configuration.
    #[error("limit reached: {0}")]
    Capacity(String),
    /// The connector was shut down.
    #[error("the connector is shut down")]
    Closed,
    /// This build or this engine cannot do that.
    #[error("not supported: {0}")]
    Unsupported(String),
}

impl ConnectorError {
    /// An [`ConnectorError::Invalid`] with this text.
    pub(crate) fn invalid(text: impl Into<String>) -> Self {
        Self::Invalid(text.into())
    }
}

impl From<CopyError> for ConnectorError {
    fn from(error: CopyError) -> Self {
        match error {
            CopyError::QueueFull { .. } => Self::Retry(error.to_string()),
            CopyError::Closed => Self::Closed,
            CopyError::Unsupported(_) | CopyError::MissingLibrary { .. } => Self::Unsupported(error.to_string()),
            CopyError::Invalid(_) => Self::Invalid(error.to_string()),
            CopyError::OutOfMemory(_) => Self::Capacity(error.to_string()),
            CopyError::Failed(_) | CopyError::DeviceLost(_) => Self::Corrupt(error.to_string()),
        }
    }
}

impl From<TieringError> for ConnectorError {
    fn from(error: TieringError) -> Self {
        let text = error.to_string();
        match error {
            TieringError::Closed => Self::Closed,
            TieringError::TooManyTiers { .. }
            | TieringError::UnknownRequest(_)
            | TieringError::RequestOpen(_)
            | TieringError::KeyTooLong { .. } => Self::Invalid(text),
            TieringError::TooManyRequests { .. } | TieringError::TooManyKeys { .. } => Self::Capacity(text),
            TieringError::NotResident { .. } | TieringError::TooManyReaders { .. } => Self::Retry(text),
            TieringError::NotLoading { .. } | TieringError::NotStoring { .. } => Self::Corrupt(text),
        }
    }
}
