//! Functions that no driver has: with them the simulated one plays a driver that is newer than all that a program knows.

use crate::driver::driver;
use crate::ffi::put;

api! {
    fn cuLaunchTomorrow() { driver().map(|_| ()) }
    fn cuTomorrow(out: *mut i32) { put(out, 1) }
}
