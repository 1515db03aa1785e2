//! What must hold between the keys of an object tier.

use crate::bounds::OBJECT_SEGMENT_BYTES;
use crate::draft::TierDraft;
use crate::endpoint::check_endpoint;
use crate::location::{ObjectLocation, URL_RULE};
use crate::model::{Credentials, Geometry, ObjectConfig};
use crate::report::Report;
use crate::units::{format_duration, format_size};
use crate::value::quoted;
use crate::watermarks::watermarks;

/// Checks the tier at `path`.
pub(crate) fn object(path: &str, tier: &TierDraft, geometry: &Geometry, report: &mut Report<'_>) {
    let object = &tier.object;
    place(path, object, report);
    credentials(path, object, report);
    sizes(path, object, geometry, report);
    watermarks(path, tier, (object.high_watermark, object.low_watermark), geometry, report);
    ordered(
        path,
        ("fold_interval", object.fold_interval),
        ("fold_interval_max", object.fold_interval_max),
        format_duration,
        report,
    );
    retention(path, object, report);
}

/// A node that lists the log as seldom as it may still finds what was written since: it starts anew from the snapshot when half of the
/// retention has gone by.
fn retention(path: &str, object: &ObjectConfig, report: &mut Report<'_>) {
    let [kept, seldom] = ["log_retention", "fold_interval_max"].map(|name| format!("{path}.{name}"));
    let least = object.fold_interval_max.saturating_mul(2);
    if !report.good(&[&kept, &seldom]) || object.log_retention >= least {
        return;
    }
    let longest = format_duration(object.fold_interval_max);
    let fix = format!("write at least {}, or a shorter fold_interval_max", quoted(&format_duration(least)));
    if report.marked(&kept) {
        report.fault(&kept, format!("must be at least twice fold_interval_max, {longest}"), fix);
    } else {
        let kept = object.log_retention;
        let bound = format!("must be at most half of log_retention, {}", format_duration(kept));
        report.fault(
            &seldom,
            bound,
            format!("write at most {}, or raise log_retention", quoted(&format_duration(kept / 2))),
        );
    }
}

/// The url, and the keys that a directory has no use for.
fn place(path: &str, object: &ObjectConfig, report: &mut Report<'_>) {
    let [url, endpoint] = ["url", "endpoint"].map(|name| format!("{path}.{name}"));
    if report.good(&[&endpoint])
        && let Some(Err(fix)) = object.endpoint.as_deref().map(check_endpoint)
    {
        report.fault(&endpoint, "must be http:// or https://, a host and perhaps a port", fix);
    }
    if !report.good(&[&url]) {
        return;
    }
    if object.url.is_empty() {
        let fix = "write url = \"s3://bucket/terrace\" under [[tier]]";
        report.fault(&url, if report.marked(&url) { URL_RULE } else { "must be written" }, fix);
        return;
    }
    match object.location() {
        Err(fix) => report.fault(&url, URL_RULE, fix),
        Ok(ObjectLocation::Bucket { .. }) => {}
        Ok(ObjectLocation::Directory(_)) => {
            let set = [
                ("endpoint", object.endpoint.is_some()),
                ("ca_file", object.ca_file.is_some()),
                ("credentials_file", object.credentials_file.is_some()),
                ("credentials", matches!(object.credentials, Credentials::Environment | Credentials::File)),
            ];
            for (name, _) in set.into_iter().filter(|(_, set)| *set) {
                let at = format!("{path}.{name}");
                if report.good(&[&at]) {
                    report.fault(&at, "must not stand beside a url of a directory", "remove it, or write an s3:// url");
                }
            }
        }
    }
}

/// A file exactly where it is read.
fn credentials(path: &str, object: &ObjectConfig, report: &mut Report<'_>) {
    let [source, file] = ["credentials", "credentials_file"].map(|name| format!("{path}.{name}"));
    if !report.good(&[&source, &file]) {
        return;
    }
    match (object.credentials, &object.credentials_file) {
        (Credentials::File, None) => {
            let fix = "write credentials_file = \"/etc/terrace/credentials\" under this [[tier]]";
            report.fault(&source, "must have a credentials_file", fix);
        }
        (Credentials::Environment | Credentials::None, Some(_)) => {
            let bound = format!("must not stand beside credentials = \"{}\"", object.credentials);
            report.fault(&file, bound, "remove it, or write credentials = \"chain\" or \"file\"");
        }
        _ => {}
    }
}

/// The staging memory holds segments, and the largest that there can be: a block that is larger than a segment should be.
fn sizes(path: &str, object: &ObjectConfig, geometry: &Geometry, report: &mut Report<'_>) {
    let staging = format!("{path}.staging_bytes");
    let least = geometry.object_bytes() + OBJECT_SEGMENT_BYTES;
    if report.good(&[&staging, "geometry.block_bytes"]) && object.staging_bytes < least {
        report.fault(
            &staging,
            format!(
                "must hold one block of {}, with its header of 256B and {} for its segment",
                format_size(geometry.block_bytes.into()),
                format_size(OBJECT_SEGMENT_BYTES)
            ),
            format!("write at least {}", quoted(&format_size(least.next_multiple_of(1 << 20)))),
        );
    }
    ordered(
        path,
        ("segment_bytes", u64::from(object.segment_bytes)),
        ("staging_bytes", object.staging_bytes),
        format_size,
        report,
    );
}

/// The value of `small` is at most that of `large`. Told at whichever is written, as the other may be the default.
fn ordered<T: Copy + PartialOrd>(
    path: &str,
    small: (&str, T),
    large: (&str, T),
    format: impl Fn(T) -> String,
    report: &mut Report<'_>,
) {
    let [small_at, large_at] = [small.0, large.0].map(|name| format!("{path}.{name}"));
    if !report.good(&[&small_at, &large_at]) || small.1 <= large.1 {
        return;
    }
    let (least, most) = (format(small.1), format(large.1));
    if report.marked(&large_at) {
        report.fault(
            &large_at,
            format!("must be at least {}, {least}", small.0),
            format!("write at least {}", quoted(&least)),
        );
    } else {
        report.fault(
            &small_at,
            format!("must be at most {}, {most}", large.0),
            format!("write at most {}, or a {} of at least {} too", quoted(&most), large.0, quoted(&least)),
        );
    }
}
