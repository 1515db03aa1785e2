//! What must hold between keys. A rule is asked only if each key that it reads kept its own bounds.

use std::path::{Component, Path, PathBuf};

use crate::bounds::{COPY_PIECE_BYTES, MAX_BLOCKS, MAX_PRIMARY_BYTES, MAX_TIER_BYTES};
use crate::draft::{Draft, Kind, SizeDraft, TierDraft};
use crate::location::ObjectLocation;
use crate::model::{CopyConfig, Geometry};
use crate::object_relations::object;
use crate::report::Report;
use crate::tier_keys::TIER;
use crate::units::format_size;
use crate::value::quoted;
use crate::watermarks::watermarks;

/// Checks all relations and names the tiers that have no name.
pub(crate) fn check(draft: &mut Draft, report: &mut Report<'_>) {
    geometry(&draft.config.geometry, report);
    primary(draft, report);
    copy(&draft.config.copy, report);
    for (i, tier) in draft.tiers.iter().enumerate() {
        let path = format!("{TIER}[{i}]");
        tier_size(&path, tier, &draft.config.geometry, report);
        match tier.kind {
            Some(Kind::Nvme) => nvme(&path, tier, &draft.config.geometry, report),
            Some(Kind::Object) => object(&path, tier, &draft.config.geometry, report),
            Some(Kind::Memory) => {}
            None if report.good(&[&format!("{path}.type")]) => {
                let fix = "write type = \"nvme\", type = \"memory\" or type = \"object\"";
                report.fault(&format!("{path}.type"), "must be written", fix);
            }
            None => {}
        }
    }
    names(&mut draft.tiers, report);
    crate::tenant_keys::check(&draft.config.tenants, draft.config.server.pools, report);
    directories(&draft.tiers, report);
    buckets(&draft.tiers, report);
}

fn geometry(geometry: &Geometry, report: &mut Report<'_>) {
    if !report.good(&["geometry.block_bytes", "geometry.blocks_per_chunk"]) {
        return;
    }
    let Geometry { block_bytes, blocks_per_chunk, .. } = *geometry;
    if blocks_per_chunk > 0 && !block_bytes.is_multiple_of(blocks_per_chunk) {
        let below = block_bytes - block_bytes % blocks_per_chunk;
        let near = if below > 0 { below } else { blocks_per_chunk };
        report.fault(
            "geometry.blocks_per_chunk",
            format!("must divide geometry.block_bytes, {}", format_size(block_bytes.into())),
            format!("change one of them, block_bytes to {} for example", quoted(&format_size(near.into()))),
        );
    }
}

fn primary(draft: &Draft, report: &mut Report<'_>) {
    let size = &draft.primary_size;
    if !one_size("primary", size, "64GiB", report) || !report.good(&["geometry.block_bytes"]) {
        return;
    }
    let stride = u64::from(draft.config.geometry.slot_stride()).max(1);
    let most = u64::from(MAX_BLOCKS).min(MAX_PRIMARY_BYTES / stride);
    if let Some(bytes) = size.capacity_bytes {
        capacity_holds(
            "primary.capacity",
            bytes,
            stride,
            most,
            "one slot (geometry.block_bytes rounded up to 4KiB)",
            report,
        );
    }
    if size.blocks.is_some_and(|blocks| u64::from(blocks) > most) {
        report.fault(
            "primary.blocks",
            format!("must take at most {} in slots of {}", format_size(MAX_PRIMARY_BYTES), format_size(stride)),
            format!("write at most {most}"),
        );
    }
}

fn copy(copy: &CopyConfig, report: &mut Report<'_>) {
    let bytes = copy.piece_bytes;
    if report.good(&["copy.piece_bytes"]) && !bytes.is_multiple_of(COPY_PIECE_BYTES) {
        report.fault(
            "copy.piece_bytes",
            format!("must be a multiple of {}", format_size(COPY_PIECE_BYTES)),
            format!("write {}", quoted(&format_size(bytes - bytes % COPY_PIECE_BYTES))),
        );
    }
}

fn tier_size(path: &str, tier: &TierDraft, geometry: &Geometry, report: &mut Report<'_>) {
    if !one_size(path, &tier.size, "2TiB", report) || !report.good(&["geometry.block_bytes"]) {
        return;
    }
    let Some(kind) = tier.kind else { return };
    let each = kind.bytes_per_block(geometry).max(1);
    let most = u64::from(MAX_BLOCKS).min(MAX_TIER_BYTES / each);
    if let Some(bytes) = tier.size.capacity_bytes {
        let what = match kind {
            Kind::Nvme => "one block (geometry.block_bytes rounded up to 4KiB, and a footer of 4KiB)",
            Kind::Memory => "one block (geometry.block_bytes)",
            Kind::Object => "one block (geometry.block_bytes and a header of 256B)",
        };
        capacity_holds(&format!("{path}.capacity"), bytes, each, most, what, report);
    }
    if tier.size.blocks.is_some_and(|blocks| u64::from(blocks) > most) {
        report.fault(
            &format!("{path}.blocks"),
            format!("must take at most {} in blocks of {}", format_size(MAX_TIER_BYTES), format_size(each)),
            format!("write at most {most}"),
        );
    }
}

/// Whether exactly one of `capacity` and `blocks` is written, and within its own bounds.
fn one_size(path: &str, size: &SizeDraft, example: &str, report: &mut Report<'_>) -> bool {
    let (capacity, blocks) = (format!("{path}.capacity"), format!("{path}.blocks"));
    if !report.good(&[&capacity, &blocks]) {
        return false;
    }
    match (size.capacity_bytes, size.blocks) {
        (Some(_), Some(_)) => {
            report.fault(&blocks, format!("must not stand beside {capacity}"), "remove one of the two");
            false
        }
        (None, None) => {
            let header = if path.starts_with(TIER) { "[[tier]]" } else { "[primary]" };
            let fix = format!("write capacity = {} under {header}", quoted(example));
            report.fault(&capacity, "must be written, or blocks in its place", fix);
            false
        }
        _ => true,
    }
}

/// A capacity of 1 to `most` blocks of `each` bytes.
fn capacity_holds(path: &str, bytes: u64, each: u64, most: u64, what: &str, report: &mut Report<'_>) {
    if bytes < each {
        report.fault(
            path,
            format!("must hold at least {what}"),
            format!("write at least {}", quoted(&format_size(each))),
        );
    } else if bytes / each > most {
        report.fault(
            path,
            format!("must hold at most {most} blocks of {}", format_size(each)),
            format!("write at most {}, or raise geometry.block_bytes", quoted(&format_size(most * each))),
        );
    }
}

fn nvme(path: &str, tier: &TierDraft, geometry: &Geometry, report: &mut Report<'_>) {
    let (nvme, paths) = (&tier.nvme, format!("{path}.paths"));
    if report.good(&[&paths]) && nvme.paths.is_empty() {
        report.fault(&paths, "must be written", "write paths = [\"/mnt/nvme0/terrace\"] under [[tier]]");
    }
    watermarks(path, tier, (nvme.high_watermark, nvme.low_watermark), geometry, report);
}

/// Gives each tier without a name that of its type, with a number from the second on; all names differ.
fn names(tiers: &mut [TierDraft], report: &mut Report<'_>) {
    for i in 0..tiers.len() {
        let Some(kind) = tiers[i].kind else { continue };
        let path = format!("{TIER}[{i}].name");
        if !report.good(&[&path]) {
            continue;
        }
        let nth = tiers[..=i].iter().filter(|tier| tier.kind == Some(kind)).count();
        let default = if nth == 1 { kind.word().to_owned() } else { format!("{}-{nth}", kind.word()) };
        let name = tiers[i].name.get_or_insert(default).clone();
        if let Some(other) = tiers[..i].iter().position(|tier| tier.name.as_ref() == Some(&name)) {
            let bound = format!("must not be {}, the name of {TIER}[{other}]", quoted(&name));
            report.fault(&path, bound, "write another name");
        }
    }
}

/// No directory is used twice, and none lies inside another: each is wholly one tier's.
fn directories(tiers: &[TierDraft], report: &mut Report<'_>) {
    let mut seen: Vec<(PathBuf, String)> = Vec::new();
    for (i, tier) in tiers.iter().enumerate() {
        let paths =
            tier.nvme.paths.iter().enumerate().map(|(j, path)| (plain(path), format!("{TIER}[{i}].paths[{j}]")));
        let shared = match tier.object.location() {
            Ok(ObjectLocation::Directory(path)) if tier.kind == Some(Kind::Object) => Some(path),
            _ => None,
        };
        for (path, at) in paths.chain(shared.map(|path| (plain(&path), format!("{TIER}[{i}].url")))) {
            // The first clash is enough: one fault a directory.
            let clash = seen.iter().find(|(other, _)| path.starts_with(other) || other.starts_with(&path));
            if let Some((other, other_at)) = clash {
                let bound = match *other == path {
                    true => format!("must not be {other_at} once more"),
                    false => format!("must not lie inside or around {other_at}, {}", quoted(&other.to_string_lossy())),
                };
                report.fault(&at, bound, "write a directory of its own, on another disk if it is to add speed");
            }
            seen.push((path, at));
        }
    }
}

/// No two tiers have the same bucket and prefix of one server.
fn buckets(tiers: &[TierDraft], report: &mut Report<'_>) {
    let place = |tier: &TierDraft| match tier.object.location() {
        Ok(bucket @ ObjectLocation::Bucket { .. }) if tier.kind == Some(Kind::Object) => {
            Some((tier.object.endpoint.as_deref().map(|server| server.trim_end_matches('/').to_owned()), bucket))
        }
        _ => None,
    };
    for (i, tier) in tiers.iter().enumerate() {
        let clash =
            place(tier).and_then(|this| tiers[..i].iter().position(|other| place(other).as_ref() == Some(&this)));
        if let Some(other) = clash {
            let bound = format!("must not be {TIER}[{other}].url once more");
            report.fault(&format!("{TIER}[{i}].url"), bound, "write a prefix of its own");
        }
    }
}

/// `path` without `.` and doubled or trailing slashes. Symbolic links and `..` stay: the lock file in the directory
/// catches what they hide.
fn plain(path: &Path) -> PathBuf {
    path.components().filter(|part| *part != Component::CurDir).collect()
}
