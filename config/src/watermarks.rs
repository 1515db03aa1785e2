//! What must hold between the watermarks of a tier and its size.

use crate::draft::TierDraft;
use crate::model::Geometry;
use crate::report::Report;
use crate::units::format_size;

/// The shares in their order, and room for one block below the upper one.
pub(crate) fn watermarks(
    path: &str,
    tier: &TierDraft,
    (high_share, low_share): (f64, f64),
    geometry: &Geometry,
    report: &mut Report<'_>,
) {
    let [high, low, capacity, blocks] =
        ["high_watermark", "low_watermark", "capacity", "blocks"].map(|name| format!("{path}.{name}"));
    if !report.good(&[&high]) {
        return;
    }
    if report.good(&[&low]) && low_share > high_share {
        // Told at whichever of the two is written; the other may be the default.
        if report.marked(&low) {
            let fix = format!("write at most {high_share:?}");
            report.fault(&low, format!("must be at most high_watermark, {high_share:?}"), fix);
        } else {
            let fix = format!("write at least {low_share:?}, or a low_watermark of at most {high_share:?} too");
            report.fault(&high, format!("must be at least low_watermark, {low_share:?}"), fix);
        }
    }
    if !report.good(&[&capacity, &blocks, "geometry.block_bytes"]) {
        return;
    }
    let Some(kind) = tier.kind else { return };
    let each = kind.bytes_per_block(geometry);
    if let Some(bytes) = tier.capacity_bytes(geometry)
        && (bytes as f64 * high_share) < each as f64
    {
        report.fault(
            if report.marked(&high) { &high } else { &capacity },
            format!("must leave room for one block of {} in the {} of the tier", format_size(each), format_size(bytes)),
            "raise it, or the size of the tier",
        );
    }
}
