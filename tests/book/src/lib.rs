//! The book in `docs/`: its generated pages, and what it has to have.
//!
//! * [`generated`] are the pages of the chapter "reference" that the program of this crate writes: [`commands`], [`policy`], [`metrics`],
//!   [`chart`].
//! * [`literals`], [`scripts`] and [`messages`] are what the sources of the shipped crates, the web page and the package's scripts say to
//!   users; [`pages`] is what the book has. The tests compare both.

pub mod chart;
pub mod commands;
pub mod generated;
pub mod literals;
pub mod markdown;
pub mod messages;
pub mod metrics;
pub mod pages;
pub mod policy;
pub mod scripts;
