//! Checks the architecture of this workspace: no circle of files, no import upward, no dependency that is not allowed.
//!
//! The rules are in `tests/architecture/layers.toml`. The check works in these steps:
//!
//! * [`workspace`] reads the manifests and sources, [`rules`] reads `layers.toml`.
//! * [`modules`] builds the module tree of every target of a crate; [`scope`] collects what a module defines and refers to, from
//!   [syntax](mod@syntax) and from the [`tokens`] of macros. Test-only code is left out.
//! * [`resolve`] turns every reference into the file that defines the name, and so the module tree into a [`graph`] of files.
//! * [`check`] compares graphs and manifests with the rules. Every [`failure`] says what to do about it.
//!
//! The check resolves names without types: a method call on a value whose type is never named is not seen.

pub mod check;
pub mod failure;
pub mod graph;
pub mod modules;
pub mod resolve;
pub mod rules;
pub mod scope;
pub mod syntax;
pub mod tokens;
pub mod workspace;

#[cfg(test)]
mod tests;
