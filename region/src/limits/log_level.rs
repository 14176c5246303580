//! Log levels, and their names in each dialect.

/// Amount of logging of the library on stderr.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum LogLevel {
    /// Nothing.
    Off = 0,
    /// Errors that make vgpu refuse to work.
    Error = 1,
    /// Also the first refusal by each limit. The default.
    Warn = 2,
    /// Also the configuration found at start.
    Info = 3,
    /// Also individual decisions.
    Debug = 4,
}

impl LogLevel {
    /// Parses a name or number, as in `VGPU_LOG`.
    #[must_use]
    pub fn named(text: &[u8]) -> Option<Self> {
        match text {
            b"off" | b"0" => Some(Self::Off),
            b"error" | b"1" => Some(Self::Error),
            b"warn" | b"2" => Some(Self::Warn),
            b"info" | b"3" => Some(Self::Info),
            b"debug" | b"4" => Some(Self::Debug),
            _ => None,
        }
    }

    /// Parses HAMi's `LIBCUDA_LOG_LEVEL`, 0 to 4.
    #[must_use]
    pub fn of_hami(text: &[u8]) -> Option<Self> {
        match text {
            b"0" => Some(Self::Error),
            b"1" | b"2" => Some(Self::Warn),
            b"3" => Some(Self::Info),
            b"4" => Some(Self::Debug),
            _ => None,
        }
    }

    /// Parses vgpu-controller's `LOGGER_LEVEL`, 0 to 5.
    #[must_use]
    pub fn of_controller(text: &[u8]) -> Option<Self> {
        match text {
            b"0" | b"1" => Some(Self::Error),
            b"2" => Some(Self::Warn),
            b"3" => Some(Self::Info),
            b"4" | b"5" => Some(Self::Debug),
            _ => None,
        }
    }
}
