//! Copying past the cache.
#![expect(unsafe_code, reason = "vector loads and streaming stores through raw pointers")]

/// Which streaming stores this machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamKind {
    /// 64 bytes at once.
    Avx512,
    /// 32 bytes at once.
    Avx2,
    /// None that is known: a plain copy instead.
    Plain,
}

impl StreamKind {
    /// The widest of this machine.
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if std::arch::is_x86_feature_detected!("avx512f") {
                return Self::Avx512;
            }
            if std::arch::is_x86_feature_detected!("avx2") {
                return Self::Avx2;
            }
        }
        Self::Plain
    }
}

/// Copies `len` bytes with stores that go past the cache (`Plain`: with the ordinary copy). When it returns, the bytes
/// are visible to any thread that synchronises with this one.
///
/// # Safety
/// `src` is valid for reads and `dst` for writes of `len` bytes, they do not overlap, nobody writes `src` or accesses `dst`
/// meanwhile, and `kind` is one that this machine has.
pub unsafe fn stream_copy(kind: StreamKind, src: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: the caller's promises are passed on.
    unsafe { stream_copy_unfenced(kind, src, dst, len) };
    stream_fence();
}

/// As [`stream_copy`], but other threads may see the bytes late: [`stream_fence`] comes before telling them.
///
/// # Safety
/// As [`stream_copy`].
pub(super) unsafe fn stream_copy_unfenced(kind: StreamKind, src: *const u8, dst: *mut u8, len: usize) {
    match kind {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller's promises are passed on.
        StreamKind::Avx512 => unsafe { x86::copy_avx512(src, dst, len) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller's promises are passed on.
        StreamKind::Avx2 => unsafe { x86::copy_avx2(src, dst, len) },
        // SAFETY: the caller's promises are passed on.
        _ => unsafe { std::ptr::copy_nonoverlapping(src, dst, len) },
    }
}

/// Streaming stores are weakly ordered: without the fence a later release store could be seen before them. It drains
/// buffers, so once for many runs is better than for each.
pub(super) fn stream_fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE is part of x86-64.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        __m256i, __m512i, _mm256_loadu_si256, _mm256_stream_si256, _mm512_loadu_si512, _mm512_stream_si512,
    };

    /// Bytes up to the first address in `dst` that is a multiple of `align`, copied the ordinary way.
    ///
    /// # Safety
    /// As [`super::stream_copy`].
    unsafe fn copy_head(src: *const u8, dst: *mut u8, len: usize, align: usize) -> usize {
        let head = ((dst as usize).next_multiple_of(align) - dst as usize).min(len);
        // SAFETY: `head <= len`, and the caller's promises hold for `len` bytes.
        unsafe { std::ptr::copy_nonoverlapping(src, dst, head) };
        head
    }

    /// # Safety
    /// As [`super::stream_copy`]; the machine has AVX-512F.
    #[target_feature(enable = "avx512f")]
    pub unsafe fn copy_avx512(src: *const u8, dst: *mut u8, len: usize) {
        const LANE: usize = 64;
        // SAFETY: passed on.
        let mut at = unsafe { copy_head(src, dst, len, LANE) };
        while len - at >= 4 * LANE {
            // SAFETY: four lanes lie inside `len`; `dst + at` is 64-byte aligned, loads need no alignment.
            unsafe {
                let from = src.add(at).cast::<__m512i>();
                let to = dst.add(at).cast::<__m512i>();
                let a = _mm512_loadu_si512(from);
                let b = _mm512_loadu_si512(from.add(1));
                let c = _mm512_loadu_si512(from.add(2));
                let d = _mm512_loadu_si512(from.add(3));
                _mm512_stream_si512(to, a);
                _mm512_stream_si512(to.add(1), b);
                _mm512_stream_si512(to.add(2), c);
                _mm512_stream_si512(to.add(3), d);
            }
            at += 4 * LANE;
        }
        // SAFETY: the rest, inside `len`.
        unsafe { std::ptr::copy_nonoverlapping(src.add(at), dst.add(at), len - at) };
    }

    /// # Safety
    /// As [`super::stream_copy`]; the machine has AVX2.
    #[target_feature(enable = "avx2")]
    pub unsafe fn copy_avx2(src: *const u8, dst: *mut u8, len: usize) {
        const LANE: usize = 32;
        // SAFETY: passed on.
        let mut at = unsafe { copy_head(src, dst, len, LANE) };
        while len - at >= 4 * LANE {
            // SAFETY: four lanes lie inside `len`; `dst + at` is 32-byte aligned, loads need no alignment.
            unsafe {
                let from = src.add(at).cast::<__m256i>();
                let to = dst.add(at).cast::<__m256i>();
                let a = _mm256_loadu_si256(from);
                let b = _mm256_loadu_si256(from.add(1));
                let c = _mm256_loadu_si256(from.add(2));
                let d = _mm256_loadu_si256(from.add(3));
                _mm256_stream_si256(to, a);
                _mm256_stream_si256(to.add(1), b);
                _mm256_stream_si256(to.add(2), c);
                _mm256_stream_si256(to.add(3), d);
            }
            at += 4 * LANE;
        }
        // SAFETY: the rest, inside `len`.
        unsafe { std::ptr::copy_nonoverlapping(src.add(at), dst.add(at), len - at) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_copies_every_alignment_exactly() {
        let source: Vec<u8> = (0..5000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let mut kinds = vec![StreamKind::Plain, StreamKind::detect()];
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") {
            kinds.push(StreamKind::Avx2);
        }
        for kind in kinds {
            for (from, to, len) in
                [(0, 0, 4096), (1, 0, 4000), (0, 1, 63), (3, 61, 64), (7, 9, 0), (5, 64, 257), (31, 33, 1)]
            {
                let mut target = vec![0xAA; 5000];
                // SAFETY: both ranges lie inside vectors of 5000 bytes that nobody else uses.
                unsafe { stream_copy(kind, source.as_ptr().add(from), target.as_mut_ptr().add(to), len) };
                assert_eq!(&target[to..to + len], &source[from..from + len], "{kind:?} {from} {to} {len}");
                assert!(
                    target[..to].iter().chain(&target[to + len..]).all(|byte| *byte == 0xAA),
                    "{kind:?} wrote outside"
                );
            }
        }
    }
}
