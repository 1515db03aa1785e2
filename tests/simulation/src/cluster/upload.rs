//! An object that goes up in parts.

use std::fmt;

use async_trait::async_trait;
use futures_util::FutureExt;
use object_store::path::Path;
use object_store::{MultipartUpload, PutPayload, PutResult, Result, UploadPart};

use super::bucket::Change;
use super::view::View;

pub(crate) struct Upload {
    view: View,
    upload: u64,
    path: Path,
    parts: usize,
}

impl Upload {
    pub const fn new(view: View, upload: u64, path: Path) -> Self {
        Self { view, upload, path, parts: 0 }
    }
}

impl fmt::Debug for Upload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Upload")
    }
}

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (view, path) = (self.view.clone(), self.path.clone());
        let change = Change::Part { upload: self.upload, index: self.parts, bytes: data.into() };
        self.parts += 1;
        async move { view.change("part", &path, change, &[]).await }.boxed()
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let change = Change::Complete { upload: self.upload, path: self.path.clone() };
        self.view.change("complete", &self.path, change, &[]).await?;
        Ok(PutResult { e_tag: None, version: None, extensions: Default::default() })
    }

    async fn abort(&mut self) -> Result<()> {
        self.view.change("abort", &self.path, Change::Abort { upload: self.upload }, &[]).await
    }
}
