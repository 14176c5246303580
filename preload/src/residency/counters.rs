//! Figures about moves: how much is on the host, and the number, bytes and time of the moves so far.

use core::sync::atomic::Ordering::Relaxed;

use vgpu_region::ledger::pages;
use vgpu_region::trace::Kind;

use crate::os::clock;
use crate::residency::block::Block;
use crate::residency::blocks;
use crate::session::{Gpu, Session};
use crate::trace::sink;

/// Publishes how much is on the host.
pub fn publish_out(session: &Session) {
    let of = |gpu| pages(bytes_on(gpu, Block::is_away));
    session.gpus().iter().for_each(|gpu| gpu.charge.out.store(of(gpu), Relaxed));
}

/// Counts and traces a move that began at `begin` and has ended, on each GPU whose memory it has moved. The blocks that left are known
/// until their contents on the host are forgotten.
pub fn count_move(session: &Session, is_out: bool, begin: u64) {
    let end = clock::monotonic();
    for gpu in session.gpus() {
        let bytes = bytes_on(gpu, |block| block.is_stored() && block.is_away() == is_out);
        let (moves, kind) = if is_out { (&gpu.account.moves_out, Kind::MoveOut) } else { (&gpu.account.moves_in, Kind::MoveIn) };
        if bytes != 0 {
            moves.add(bytes, end.saturating_sub(begin));
            sink::span(kind, gpu.device as u64, begin, end, bytes);
        }
    }
}

/// Returns the size of the blocks of a GPU that `is_one` chooses, in bytes.
pub fn bytes_on(gpu: &Gpu, is_one: impl Fn(Block) -> bool) -> u64 {
    blocks::all().filter(|block| block.device == gpu.device && is_one(*block)).map(|block| block.bytes as u64).sum()
}
