//! Names of objects, many pages of them, and the shape of blocks that objects tell.

use std::collections::HashMap;

use object_store::ObjectMeta;
use object_store::path::Path;

use super::{Progress, REQUEST, Tell};
use crate::clock::Time;
use crate::object::format::{HEAD_BYTES, peek_shape};
use crate::object::names::Names;
use crate::object::record::Shape;
use crate::object::requests::{RequestError, Requests};
use crate::object::shared::Shared;

/// Names asked for at once: a directory is listed as a whole for each, a bucket's client asks by the thousand anyway.
const PAGE: usize = 10_000;
/// Objects of each kind whose heads are read to learn the shape.
const HEADS: usize = 3;

/// All objects below `prefix` with names behind `after`, in order.
pub(super) async fn all(
    shared: &Shared,
    prefix: &Path,
    after: Option<Path>,
    step: &'static str,
    tell: Tell<'_>,
) -> Result<Vec<ObjectMeta>, RequestError> {
    let mut found: Vec<ObjectMeta> = Vec::new();
    let mut after = after;
    loop {
        let deadline = shared.clock.now().plus(REQUEST);
        let page = shared.requests.list(prefix, after.as_ref(), PAGE, deadline).await?;
        let whole = page.len() < PAGE;
        after = page.last().map(|last| last.location.clone());
        found.extend(page);
        tell(Progress { step, done: found.len() as u64, total: None });
        if whole {
            return Ok(found);
        }
    }
}

/// What the objects of a namespace say of its blocks.
pub(super) enum FoundShape {
    /// There is no object.
    Empty,
    /// There are objects, and none says.
    Unknown,
    /// This, as most of those asked say.
    Is(Shape),
}

/// Asks a few objects of a namespace for the shape of its blocks. One that is damaged, or another's, is outvoted.
pub(super) async fn find_shape(
    requests: &Requests,
    names: &Names,
    namespace: &[u8; 32],
    deadline: Time,
) -> Result<FoundShape, RequestError> {
    let mut votes: HashMap<(u32, u8), (usize, Shape)> = HashMap::new();
    let mut empty = true;
    for prefix in [names.segments(), names.logs(), names.parts(), names.snapshots()] {
        for object in requests.list(prefix, None, HEADS, deadline).await? {
            empty = false;
            let Some(shape) = shape_of(requests, &object, deadline).await? else { continue };
            if shape.namespace == *namespace {
                votes.entry((shape.block_bytes, shape.key_bytes)).or_insert((0, shape)).0 += 1;
            }
        }
    }
    Ok(match votes.into_values().max_by_key(|(count, _)| *count) {
        Some((_, shape)) => FoundShape::Is(shape),
        None if empty => FoundShape::Empty,
        None => FoundShape::Unknown,
    })
}

async fn shape_of(requests: &Requests, object: &ObjectMeta, deadline: Time) -> Result<Option<Shape>, RequestError> {
    if object.size < HEAD_BYTES as u64 {
        return Ok(None);
    }
    let mut head = Vec::with_capacity(HEAD_BYTES);
    let read = async {
        let mut body = requests.get_range(&object.location, 0..HEAD_BYTES as u64, deadline).await?;
        while let Some(bytes) = body.next().await? {
            head.extend_from_slice(&bytes);
        }
        Ok(())
    };
    match read.await {
        Ok(()) => Ok(peek_shape(&head).ok()),
        // Gone, or cut, since it was listed.
        Err(RequestError::NotFound | RequestError::Truncated) => Ok(None),
        Err(error) => Err(error),
    }
}
