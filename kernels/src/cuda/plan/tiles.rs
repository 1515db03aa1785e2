//! What one warp of the kernel copies at a time.

use crate::engine::CopyRun;

/// Bytes of a tile at most: what a warp has in flight (`DEPTH` in gather.cu), so that even a few small pages keep many warps busy.
pub(crate) const TILE_BYTES: usize = 4096;

/// One entry of the kernel's table, laid out as `Tile` in gather.cu.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tile {
    /// Address of the first byte to read, as the device sees it.
    pub src: u64,
    /// Address of the first byte to write, as the device sees it.
    pub dst: u64,
    /// Bytes.
    pub len: u32,
    /// Fills the entry up to a multiple of 8.
    pub unused: u32,
}

/// Cuts a run. Where both addresses are aligned alike, all tiles but the first begin at multiples of 16.
pub(crate) fn cut(run: CopyRun, tiles: &mut Vec<Tile>) {
    let mut done = 0;
    while done < run.len {
        let over = (run.dst + done) % 16;
        let len = (TILE_BYTES - over).min(run.len - done);
        tiles.push(Tile { src: (run.src + done) as u64, dst: (run.dst + done) as u64, len: len as u32, unused: 0 });
        done += len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_cover_a_run_in_order_and_begin_aligned() {
        assert_eq!(size_of::<Tile>(), 24);
        for (src, dst, len) in [(4096, 8192, 1), (4096, 8192, 3 * 4096), (4099, 8195, 12_289), (16, 8193, 4097)] {
            let mut tiles = Vec::new();
            cut(CopyRun { src, dst, len }, &mut tiles);
            let mut at = 0;
            for (index, tile) in tiles.iter().enumerate() {
                assert_eq!((tile.src, tile.dst), ((src + at) as u64, (dst + at) as u64));
                assert!(tile.len > 0 && tile.len as usize <= TILE_BYTES);
                assert!(index == 0 || tile.dst % 16 == 0);
                at += tile.len as usize;
            }
            assert_eq!(at, len);
        }
    }
}
