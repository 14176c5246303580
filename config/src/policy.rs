//! The operator's policy file, `/etc/vgpu/config.toml`: the only trusted source of configuration.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize};

use crate::error::{Error, Result, escaped, one_line};
use crate::quantity::{self, Bytes, Percent};
use crate::spelling;

/// Path of the policy file unless [`VARIABLE`] names another one.
pub const DEFAULT_PATH: &str = "/etc/vgpu/config.toml";
/// Variable in the environment of the *runtime's caller* that names another policy file.
pub const VARIABLE: &str = "VGPU_CONFIG";

/// The policy. Every key has a default, so an absent file is equivalent to an empty one.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Policy {
    /// State directory of the host side; `None` is `/run/vgpu`, or `/run/user/<uid>/vgpu` for rootless containers.
    pub state_dir: Option<PathBuf>,
    /// The library that is mounted into containers.
    pub library: PathBuf,
    /// The hook that mounts into containers; `None` is `vgpu-hook` in the directory of `vgpu-runtime`.
    pub hook: Option<PathBuf>,
    /// Low-level runtimes by name or path; the first one that is installed is used.
    pub runtimes: Vec<PathBuf>,
    /// How the library is loaded between a program and the driver.
    pub intercept: Intercept,
    /// The container engine whose annotations name a container's pod.
    pub engine: Engine,
    /// Device nodes that identify a container with a GPU, in addition to NVIDIA's.
    pub extra_device_nodes: Vec<PathBuf>,
    /// Treatment of a container that has a GPU and requests no limit.
    pub without_request: WithoutRequest,
    /// Treatment of a request over a ceiling.
    pub over_ceiling: OverCeiling,
    /// Treatment of a container that exceeds its limit.
    pub on_violation: OnViolation,
    /// Seconds that a violation may last before the container's processes are killed.
    pub violation_grace_seconds: u64,
    /// Treatment of a limited container that could evade its limits by a capability or through a volume over its mounts. If it is
    /// refused, limited containers cannot create user namespaces either.
    pub privileged: Admission,
    /// Treatment of a limited container whose image has no glibc loader. CUDA's driver and the library need glibc.
    pub without_glibc: Admission,
    /// Treatment of a container with a share of a claim that another container has, too: each would be limited separately.
    pub shared_claims: Admission,
    /// Limits for quantities that a container does not request.
    pub defaults: Defaults,
    /// Maximum limits of every container.
    pub ceilings: Ceilings,
    /// Containers that may opt out of limits (`CUDA_DISABLE_CONTROL`, `DISABLE_VGPU_CONTROL`).
    pub opt_out: OptOut,
    /// Driver capabilities of limited containers.
    pub driver_capabilities: DriverCapabilities,
    /// Use of NVIDIA's MPS to limit GPU time.
    pub mps: MpsPolicy,
    /// Overcommitment of device memory.
    pub overcommit: OvercommitPolicy,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            state_dir: None,
            library: PathBuf::from("/usr/lib/vgpu/libvgpu.so"),
            hook: None,
            runtimes: ["nvidia-container-runtime", "runc", "crun"].map(PathBuf::from).to_vec(),
            intercept: Intercept::default(),
            engine: Engine::default(),
            extra_device_nodes: Vec::new(),
            without_request: WithoutRequest::default(),
            over_ceiling: OverCeiling::default(),
            on_violation: OnViolation::default(),
            violation_grace_seconds: 10,
            privileged: Admission::default(),
            without_glibc: Admission::default(),
            shared_claims: Admission::Refuse,
            defaults: Defaults::default(),
            ceilings: Ceilings::default(),
            opt_out: OptOut::default(),
            driver_capabilities: DriverCapabilities::default(),
            mps: MpsPolicy::default(),
            overcommit: OvercommitPolicy::default(),
        }
    }
}

/// How the library is loaded between a program and the driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Intercept {
    /// Through `/etc/ld.so.preload`.
    Preload,
    /// As a replacement mounted over the driver's libraries.
    Replace,
    /// Both ways.
    #[default]
    Both,
}

impl Intercept {
    /// Returns whether `/etc/ld.so.preload` is used.
    #[must_use]
    pub fn preloads(self) -> bool {
        self != Self::Replace
    }

    /// Returns whether the driver's libraries are replaced.
    #[must_use]
    pub fn replaces(self) -> bool {
        self != Self::Preload
    }
}

/// The container engine whose annotations name a container's pod and mark a pod's sandbox. Those of all others are their users'.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// The engine that the bundle's path belongs to.
    #[default]
    Auto,
    /// containerd's CRI plugin.
    Containerd,
    /// CRI-O.
    Crio,
    /// None.
    None,
}

/// Treatment of a container that has a GPU and requests no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WithoutRequest {
    /// The defaults and ceilings apply; without any, it is not limited.
    #[default]
    Limit,
    /// It is not limited.
    Pass,
    /// It does not start.
    Refuse,
}

/// Treatment of a request over a ceiling.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OverCeiling {
    /// The container does not start.
    #[default]
    Refuse,
    /// It gets the ceiling.
    Clamp,
}

/// Treatment of a container that exceeds its limit, or uses a GPU without the library.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OnViolation {
    /// It is reported.
    #[default]
    Report,
    /// It is reported, and its offending processes are killed.
    Kill,
    /// As [`OnViolation::Kill`], but GPU time beyond the limit is only reported.
    #[serde(rename = "kill-memory")]
    KillMemory,
}

/// Whether a container is admitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Admission {
    /// It starts.
    #[default]
    Start,
    /// It does not start.
    Refuse,
}

/// Limits for quantities that a container does not request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Defaults {
    /// Device memory of each GPU; the file requires a unit.
    #[serde(deserialize_with = "bytes")]
    pub memory: Option<Bytes>,
    /// Device memory in percent of each GPU's.
    #[serde(deserialize_with = "percent")]
    pub memory_percent: Option<Percent>,
    /// GPU time in percent.
    #[serde(deserialize_with = "percent")]
    pub cores: Option<Percent>,
    /// GPU time in percent while the GPU is otherwise idle.
    #[serde(deserialize_with = "percent")]
    pub cores_soft: Option<Percent>,
}

/// Maximum limits of every container.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ceilings {
    /// Device memory of each GPU; the file requires a unit.
    #[serde(deserialize_with = "bytes")]
    pub memory: Option<Bytes>,
    /// Device memory in percent of each GPU's.
    #[serde(deserialize_with = "percent")]
    pub memory_percent: Option<Percent>,
    /// GPU time in percent.
    #[serde(deserialize_with = "percent")]
    pub cores: Option<Percent>,
    /// GPU time in percent while the GPU is otherwise idle.
    #[serde(deserialize_with = "percent")]
    pub cores_soft: Option<Percent>,
    /// Memory that may spill to the host, in percent of the container's device memory; 0 disables oversubscription, 100 is the default.
    pub oversubscribe_percent: u32,
    /// Highest priority that a container may request: 0 (the default) or 1.
    pub priority: u32,
}

impl Default for Ceilings {
    fn default() -> Self {
        Self { memory: None, memory_percent: None, cores: None, cores_soft: None, oversubscribe_percent: 100, priority: 0 }
    }
}

/// Containers that may opt out of limits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OptOut {
    /// All containers.
    pub anyone: bool,
    /// Pods of these namespaces.
    pub namespaces: Vec<String>,
}

impl OptOut {
    /// Returns whether a container of a pod in this namespace may opt out.
    #[must_use]
    pub fn allows(&self, namespace: Option<&str>) -> bool {
        self.anyone || namespace.is_some_and(|namespace| self.namespaces.iter().any(|allowed| allowed == namespace))
    }
}

/// Use of NVIDIA's MPS to limit GPU time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MpsPolicy {
    /// Directory of the daemon's pipes. While the daemon runs, containers with a limit on GPU time become its clients; `None`
    /// disables MPS.
    pub pipe_directory: Option<PathBuf>,
}

/// Overcommitment of device memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OvercommitPolicy {
    /// Whether containers on one GPU may be promised more memory than it has. Those that ask for it are evictable.
    pub enabled: bool,
}

/// Driver capabilities of limited containers.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DriverCapabilities {
    /// Allowed capabilities; by default those whose memory and time vgpu accounts for.
    pub allow: Vec<String>,
    /// Treatment of all others.
    pub otherwise: Otherwise,
}

impl Default for DriverCapabilities {
    fn default() -> Self {
        Self { allow: vec!["compute".to_owned(), "utility".to_owned()], otherwise: Otherwise::default() }
    }
}

/// Treatment of a driver capability that is not allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Otherwise {
    /// The container starts without it.
    #[default]
    Drop,
    /// The container does not start.
    Refuse,
}

fn bytes<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Bytes>, D::Error> {
    let text = String::deserialize(from)?;
    let units = &quantity::POLICY;
    units.parse(&text).map(Some).ok_or_else(|| serde::de::Error::custom(format!("expected {}", units.advice(&text))))
}

/// A number, or a text that was written for one.
#[derive(Deserialize)]
#[serde(untagged)]
enum Number {
    Integer(i64),
    Text(String),
    Fraction(f64),
}

fn percent<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Percent>, D::Error> {
    let text = match Number::deserialize(from) {
        Ok(Number::Integer(number)) => match u32::try_from(number).ok().and_then(Percent::new) {
            Some(percent) => return Ok(Some(percent)),
            None => number.to_string(),
        },
        Ok(Number::Text(text)) => text,
        Ok(Number::Fraction(fraction)) => fraction.to_string(),
        Err(_) => String::new(),
    };
    Err(serde::de::Error::custom(format!("expected {}", quantity::percent_advice(&text, quantity::PERCENT))))
}

impl Policy {
    /// Reads the policy file `named`, or the default one, which may be absent.
    ///
    /// # Errors
    /// The file cannot be read, is writable by others than its owner and group, or has an unknown key or an invalid value.
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
            let why = "the file is world-writable: expected one that only its owner and group may write".to_owned();
            return Err(Error::Invalid { path: path.to_owned(), why });
        }
        Self::parse(&text).map_err(|why| Error::Invalid { path: path.to_owned(), why })
    }

    /// Parses the text of a policy file.
    ///
    /// # Errors
    /// One line that names the position and the reason.
    pub fn parse(text: &str) -> Result<Self, String> {
        let policy: Self = toml_edit::de::from_str(text).map_err(|error| {
            let why = spelling::unknown_field(error.message()).unwrap_or_else(|| escaped(error.message()));
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
        policy.validate()?;
        Ok(policy)
    }

    fn validate(&self) -> Result<(), String> {
        let paths = [&self.library].into_iter().chain(&self.state_dir).chain(&self.hook).chain(&self.extra_device_nodes);
        for path in paths {
            if !path.is_absolute() {
                return Err(format!("{}: expected an absolute path", one_line(&path.display().to_string())));
            }
        }
        if self.runtimes.is_empty() {
            return Err("runtimes = []: expected at least one runtime".to_owned());
        }
        if self.ceilings.priority > 1 {
            return Err(format!("ceilings.priority = {}: expected 0 or 1", self.ceilings.priority));
        }
        Ok(())
    }

    /// Returns the low-level runtimes that the file lists even if the rest of it is invalid, or the default ones. An invalid policy
    /// must stop containers from being created, not from being inspected and deleted.
    #[must_use]
    pub fn runtimes_even_if_invalid(named: Option<&Path>) -> Vec<PathBuf> {
        let text = std::fs::read_to_string(named.unwrap_or(Path::new(DEFAULT_PATH))).unwrap_or_default();
        let listed = || {
            let document: toml_edit::DocumentMut = text.parse().ok()?;
            let items = document.get("runtimes")?.as_array()?.iter();
            items.map(|item| item.as_str().map(PathBuf::from)).collect::<Option<Vec<_>>>()
        };
        listed().filter(|runtimes| !runtimes.is_empty()).unwrap_or_else(|| Self::default().runtimes)
    }

    /// Returns the state directory: the policy's, else the system's, or that of the user `rootless`.
    #[must_use]
    pub fn state_dir(&self, rootless: Option<u32>) -> PathBuf {
        let default = rootless.map_or_else(|| PathBuf::from("/run/vgpu"), |uid| PathBuf::from(format!("/run/user/{uid}/vgpu")));
        self.state_dir.clone().unwrap_or(default)
    }
}

#[cfg(test)]
mod tests;
