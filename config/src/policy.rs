//! The operator's file, `/etc/vgpu/config.toml`. It is the only one that is believed.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer};

use crate::error::{Error, Result, one_line};
use crate::quantity;

/// Where the file is unless the caller's environment says otherwise ([`VARIABLE`]).
pub const DEFAULT_PATH: &str = "/etc/vgpu/config.toml";
/// The variable in the environment of the *runtime's caller* that names another file.
pub const VARIABLE: &str = "VGPU_CONFIG";

/// What the operator says. Every key has a default, so an absent file is an empty one.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Policy {
    /// Where the host side keeps its state; `None` is `/run/vgpu`, or `/run/user/<uid>/vgpu` for a user's own containers.
    pub state_dir: Option<PathBuf>,
    /// The library that goes into the containers.
    pub library: PathBuf,
    /// The hook that mounts into a container; `None` is `vgpu-hook` beside `vgpu-runtime`.
    pub hook: Option<PathBuf>,
    /// Low-level runtimes, by name or path; the first one that is there does the work.
    pub runtimes: Vec<PathBuf>,
    /// How the library gets between a program and the driver.
    pub intercept: Intercept,
    /// Device nodes that make a container one with a GPU, beside NVIDIA's own.
    pub extra_device_nodes: Vec<PathBuf>,
    /// What happens to a container that has a GPU and asks for no limit.
    pub without_request: WithoutRequest,
    /// What happens to a request over a ceiling.
    pub over_ceiling: OverCeiling,
    /// What happens to a container that holds more than its limit.
    pub on_violation: OnViolation,
    /// How long a violation may last before the container's processes are ended, in seconds.
    pub violation_grace_seconds: u64,
    /// What happens to a limited container whose mounts could be undone: by itself (CAP_SYS_ADMIN), or through a volume that they are in.
    pub privileged: Admission,
    /// What happens to a limited container whose image has no glibc loader: CUDA's driver needs glibc, and so does the library.
    pub without_glibc: Admission,
    /// What happens to a container with a share of a claim that another container has at the same time: each is limited by itself.
    pub shared_claims: Admission,
    /// For what a container does not ask for.
    pub defaults: Defaults,
    /// What no container gets past.
    pub ceilings: Ceilings,
    /// Who may go without limits by asking for it (`CUDA_DISABLE_CONTROL`, `DISABLE_VGPU_CONTROL`).
    pub opt_out: OptOut,
    /// Which parts of the driver a limited container may use.
    pub driver_capabilities: DriverCapabilities,
    /// NVIDIA's MPS as what shares out the GPU's time.
    pub mps: MpsPolicy,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            state_dir: None,
            library: PathBuf::from("/usr/lib/vgpu/libvgpu.so"),
            hook: None,
            runtimes: ["nvidia-container-runtime", "runc", "crun"].map(PathBuf::from).to_vec(),
            intercept: Intercept::default(),
            extra_device_nodes: Vec::new(),
            without_request: WithoutRequest::default(),
            over_ceiling: OverCeiling::default(),
            on_violation: OnViolation::default(),
            violation_grace_seconds: 10,
            privileged: Admission::default(),
            without_glibc: Admission::default(),
            shared_claims: Admission::default(),
            defaults: Defaults::default(),
            ceilings: Ceilings::default(),
            opt_out: OptOut::default(),
            driver_capabilities: DriverCapabilities::default(),
            mps: MpsPolicy::default(),
        }
    }
}

/// How the library gets between a program and the driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Intercept {
    /// Through `/etc/ld.so.preload`.
    #[default]
    Preload,
    /// Mounted over the driver's libraries.
    Replace,
    /// Both.
    Both,
}

impl Intercept {
    /// Whether `/etc/ld.so.preload` is used.
    #[must_use]
    pub fn preloads(self) -> bool {
        self != Self::Replace
    }

    /// Whether the driver's libraries are replaced.
    #[must_use]
    pub fn replaces(self) -> bool {
        self != Self::Preload
    }
}

/// What happens to a container that has a GPU and asks for no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WithoutRequest {
    /// The defaults and ceilings limit it; where there are none, it is left alone.
    #[default]
    Limit,
    /// It is left alone.
    Pass,
    /// It does not start.
    Refuse,
}

/// What happens to a request over a ceiling.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OverCeiling {
    /// The container does not start.
    #[default]
    Refuse,
    /// It gets the ceiling.
    Clamp,
}

/// What happens to a container that holds more than its limit, or uses a GPU past the library.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnViolation {
    /// It is reported.
    #[default]
    Report,
    /// Those of its processes that are to blame are ended, too.
    Kill,
}

/// Whether a container starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Admission {
    /// It starts.
    #[default]
    Start,
    /// It does not.
    Refuse,
}

/// For what a container does not ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Defaults {
    /// Device memory for each GPU, in bytes; written with a unit.
    #[serde(deserialize_with = "bytes")]
    pub memory: Option<u64>,
    /// Device memory in percent of each GPU's.
    #[serde(deserialize_with = "percent")]
    pub memory_percent: Option<u32>,
    /// Compute time in percent.
    #[serde(deserialize_with = "percent")]
    pub cores: Option<u32>,
    /// Compute time in percent while nobody else wants the GPU.
    #[serde(deserialize_with = "percent")]
    pub cores_soft: Option<u32>,
}

/// What no container gets past.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ceilings {
    /// Device memory for each GPU, in bytes; written with a unit.
    #[serde(deserialize_with = "bytes")]
    pub memory: Option<u64>,
    /// Device memory in percent of each GPU's.
    #[serde(deserialize_with = "percent")]
    pub memory_percent: Option<u32>,
    /// Compute time in percent.
    #[serde(deserialize_with = "percent")]
    pub cores: Option<u32>,
    /// Compute time in percent while nobody else wants the GPU.
    #[serde(deserialize_with = "percent")]
    pub cores_soft: Option<u32>,
    /// Memory that may spill to the host, in percent of the container's device memory; 0 is none.
    pub oversubscribe_percent: u32,
    /// The best priority to be had by asking: 0 or 1.
    pub priority: u32,
}

impl Default for Ceilings {
    fn default() -> Self {
        Self { memory: None, memory_percent: None, cores: None, cores_soft: None, oversubscribe_percent: 100, priority: 0 }
    }
}

/// Who may go without limits by asking for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OptOut {
    /// Everybody.
    pub anyone: bool,
    /// Pods of these namespaces.
    pub namespaces: Vec<String>,
}

impl OptOut {
    /// Whether a container of this namespace may.
    #[must_use]
    pub fn allows(&self, namespace: Option<&str>) -> bool {
        self.anyone || namespace.is_some_and(|namespace| self.namespaces.iter().any(|allowed| allowed == namespace))
    }
}

/// NVIDIA's MPS as what shares out the GPU's time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MpsPolicy {
    /// The folder with the daemon's pipes. Containers with a limit of time are made the daemon's clients while it is there; `None`
    /// is never.
    pub pipe_directory: Option<PathBuf>,
}

/// Which parts of the driver a limited container may use.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DriverCapabilities {
    /// Those whose memory and time are accounted for, and any others the operator accepts.
    pub allow: Vec<String>,
    /// What happens to the rest.
    pub otherwise: Otherwise,
}

impl Default for DriverCapabilities {
    fn default() -> Self {
        Self { allow: vec!["compute".to_owned(), "utility".to_owned()], otherwise: Otherwise::default() }
    }
}

/// What happens to a driver capability that is not allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Otherwise {
    /// The container starts without it.
    #[default]
    Drop,
    /// The container does not start.
    Refuse,
}

fn bytes<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    let text = String::deserialize(from)?;
    let unit = &quantity::POLICY;
    unit.parse(&text).map(Some).ok_or_else(|| serde::de::Error::custom(format!("accepted is {}", unit.accepted)))
}

fn percent<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    let number = i64::deserialize(from)?;
    let valid = u32::try_from(number).ok().filter(|number| (1..=100).contains(number));
    valid.map(Some).ok_or_else(|| serde::de::Error::custom("accepted is a whole number of percent from 1 to 100"))
}

impl Policy {
    /// Reads the policy file: `named` if somebody names one, else the default one, which may be absent.
    ///
    /// # Errors
    /// A file that cannot be read, that others than its owner may write, or that says anything but what it may say.
    pub fn load(named: Option<&Path>) -> Result<Self> {
        use std::os::unix::fs::MetadataExt;
        let path = named.unwrap_or(Path::new(DEFAULT_PATH));
        let unreadable = |source| Error::Unreadable { path: path.to_owned(), source };
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(missing) if missing.kind() == std::io::ErrorKind::NotFound && named.is_none() => return Ok(Self::default()),
            Err(source) => return Err(unreadable(source)),
        };
        if std::fs::metadata(path).map_err(unreadable)?.mode() & 0o002 != 0 {
            let why = "everybody may write it; accepted is a file that only its owner and group may write".to_owned();
            return Err(Error::Invalid { path: path.to_owned(), why });
        }
        Self::parse(&text).map_err(|why| Error::Invalid { path: path.to_owned(), why })
    }

    /// Reads the text of a policy file.
    ///
    /// # Errors
    /// One line that says where and what is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        let policy: Self = toml_edit::de::from_str(text).map_err(|error| {
            let why = one_line(error.message());
            match error.span() {
                Some(span) => {
                    let before = text.get(..span.start).unwrap_or(text);
                    let number = before.matches('\n').count() + 1;
                    let line = text.lines().nth(number - 1).unwrap_or_default().trim();
                    format!("line {number}: {}: {why}", one_line(line))
                }
                None => why,
            }
        })?;
        policy.check()?;
        Ok(policy)
    }

    fn check(&self) -> Result<(), String> {
        let paths = [&self.library].into_iter().chain(&self.state_dir).chain(&self.hook).chain(&self.extra_device_nodes);
        for path in paths {
            if !path.is_absolute() {
                return Err(format!("{}: accepted is an absolute path", one_line(&path.display().to_string())));
            }
        }
        if self.runtimes.is_empty() {
            return Err("runtimes = []: accepted is a list of at least one runtime".to_owned());
        }
        if self.ceilings.priority > 1 {
            return Err(format!("ceilings.priority = {}: accepted is 0 or 1", self.ceilings.priority));
        }
        Ok(())
    }

    /// The low-level runtimes that the file lists, however much else in it is wrong, or the default ones: a broken policy must
    /// stop containers from starting, not from being looked at and ended.
    #[must_use]
    pub fn runtimes_at_any_rate(named: Option<&Path>) -> Vec<PathBuf> {
        let text = std::fs::read_to_string(named.unwrap_or(Path::new(DEFAULT_PATH))).unwrap_or_default();
        let listed = || {
            let document: toml_edit::DocumentMut = text.parse().ok()?;
            let items = document.get("runtimes")?.as_array()?.iter();
            items.map(|item| item.as_str().map(PathBuf::from)).collect::<Option<Vec<_>>>()
        };
        listed().filter(|runtimes| !runtimes.is_empty()).unwrap_or_else(|| Self::default().runtimes)
    }

    /// Where the host side keeps its state: what the policy says, else the system's folder, or that of the user `rootless`.
    #[must_use]
    pub fn state_dir(&self, rootless: Option<u32>) -> PathBuf {
        let usual = rootless.map_or_else(|| PathBuf::from("/run/vgpu"), |uid| PathBuf::from(format!("/run/user/{uid}/vgpu")));
        self.state_dir.clone().unwrap_or(usual)
    }
}

#[cfg(test)]
mod tests;
