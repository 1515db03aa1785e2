//! The label of a namespace in a bucket: written once, when a node first opens the namespace.

use std::sync::Arc;
use std::time::Duration;

use object_store::PutPayload;

use super::requests::{Class, RequestError};
use super::shared::Shared;

/// How long writing it may take, retries included.
const WITHIN: Duration = Duration::from_secs(60);

/// Writes the label, if there is one to write and none stands there. What fails is said in the log; the next start tries again.
pub(super) async fn write(shared: Arc<Shared>) {
    let Some(label) = &shared.label else { return };
    let payload = PutPayload::from(label.as_bytes().to_vec());
    let deadline = shared.clock.now().plus(WITHIN);
    match shared.requests.put(Class::Sync, &shared.names.label(), payload, true, deadline).await {
        Ok(()) | Err(RequestError::Exists) => {}
        Err(error) => {
            tracing::warn!(tier = %shared.tier, %error, "the namespace's label was not written: `terrace tenant ls` shows it as unknown");
        }
    }
}
