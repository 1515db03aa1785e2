//! Any bytes as the footer of a block file, and as names of directory entries that a scan meets. A footer is tried as it is, then with magic,
//! version and CRC32 put right, so that its fields are what is tried.
#![no_main]

use libfuzzer_sys::fuzz_target;
use terrace_tiers::nvme::BlockName;
use terrace_tiers::nvme::format::{FOOTER_BYTES, FORMAT_VERSION, Footer, MAGIC};

fn check(bytes: &[u8; FOOTER_BYTES]) {
    let Ok(footer) = Footer::decode(bytes) else { return };
    let mut written = [0xff; FOOTER_BYTES];
    footer.encode(&mut written);
    assert_eq!(Footer::decode(&written), Ok(footer));
    assert_eq!(footer.check(&footer.namespace, &footer.key, footer.payload_bytes), Ok(()));
    assert!(footer.check(&footer.namespace, &footer.key, footer.payload_bytes ^ 1).is_err());
    let mut other = footer.namespace;
    other[31] ^= 1;
    assert!(footer.check(&other, &footer.key, footer.payload_bytes).is_err());
}

/// A name that is taken for a block's is spelled in the one way in which it is written.
fn check_name(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let mut parts = text.splitn(3, '/');
    let (Some(namespace), Some(fan_out), Some(file)) = (parts.next(), parts.next(), parts.next()) else { return };
    if let Some(name) = BlockName::parse(namespace, fan_out, file) {
        assert!(name.path().as_str().eq_ignore_ascii_case(text));
    }
}

fuzz_target!(|bytes: &[u8]| {
    check_name(bytes);
    let mut footer = [0; FOOTER_BYTES];
    let len = bytes.len().min(FOOTER_BYTES);
    footer[..len].copy_from_slice(&bytes[..len]);
    check(&footer);
    footer[..8].copy_from_slice(&MAGIC);
    footer[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
    let crc = crc32fast::hash(&footer[..FOOTER_BYTES - 4]);
    footer[FOOTER_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
    check(&footer);
});
