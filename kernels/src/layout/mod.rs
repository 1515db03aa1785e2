//! Where pages of KV memory lie, and the runs that copy them.
//!
//! Whatever shape an engine gives its tensors, each becomes pages at constant distances ([`TensorShape::canonical`]): GPU block `b`'s
//! page is the `page_bytes` bytes at `base + b * page_stride`. In its part of a slot a group's tensors follow each other, and inside each
//! tensor the pages of the chunk's GPU blocks ([`PagedLayout`]):
//!
//! ```text
//! part of a slot: | tensor 0: page of place 0 | place 1 | .. place n-1 | tensor 1: place 0 | .. |   n = blocks_per_chunk
//! ```

mod paged;
mod shape;

pub use paged::{JobPages, PagedLayout, SlotTable};
pub use shape::{PageTensor, TensorShape};
