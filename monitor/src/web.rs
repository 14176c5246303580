//! The web page for operators: its files, and the state that it asks for.
//!
//! The page is static and says nothing about the machine. It asks for [`State`], of which it gets what changed since it asked last. That
//! changes at most once a second, however many pages ask, and is bounded however many containers there are.

mod events;
mod files;
mod history;
mod rows;
mod state;
mod table;

#[cfg(test)]
mod tests;

pub use files::{File, file};
pub use state::{MIN_INTERVAL, State};
