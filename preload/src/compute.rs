//! The compute limit: launches are held back so that the container uses no more of a GPU's time than it was given.
//!
//! * [`meter`]: what finished work really took, from events around batches of launches ([`stream`]), and what ran in pauses ([`gaps`]); [`settle`]: what of
//!   that is charged, and what is learned from it.
//! * [`account`]: the container's budget, which accrues in time and pays for that; [`cost`]: what a launch will probably take;
//!   [`rounds`]: how far streams side by side have come; [`collective`]: kernels that wait for other GPUs; [`power`]: what the time counts for.
//! * [`pace`]: around every launch, the two together; [`quick`]: those that need not ask; [`hold`]: where it waits. [`engine`]: the clock and
//!   the events it does that with.
//! * [`gate`]: the turns that the host's arbiter gives to containers.
//! * [`state`]: from a stream to its meter and account. [`hooks`]: the entry points of launches; [`copies`], [`shapes`] of copies and
//!   fills; [`between`]: of what is no work; [`waits`]: where the program waits for its work.
//!
//! A launch that finds room is a few loads and stores: no lock, no allocation, no system call. Nothing polls: whoever launches
//! does the accounts of what has finished since.

mod account;
pub mod between;
pub mod collective;
pub mod copies;
mod cost;
mod cuda_engine;
mod ends;
mod engine;
mod gaps;
mod gate;
mod heads;
mod hold;
pub mod hooks;
mod host;
mod meter;
mod pace;
mod power;
mod quick;
mod rounds;
mod settle;
pub mod shapes;
mod state;
mod stream;
mod ticks;
pub mod waits;
mod waking;

#[cfg(test)]
mod host_bound;
#[cfg(test)]
mod processes;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod recorded;
#[cfg(test)]
mod side_by_side;
#[cfg(test)]
mod simulated;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod together;
#[cfg(test)]
mod unmeasured;
