//! KAI's GPU fractions. KAI selects the GPU and enforces nothing: the container that shares a GPU gets its fraction of the memory in
//! `GPU_PORTION` and the GPU in `NVIDIA_VISIBLE_DEVICES`; the other containers of its pod get neither.

use std::collections::BTreeMap;

use crate::dialect::parse::parse;
use crate::dialect::scheduling;
use crate::dialect::sources::Sources;
use crate::error::Result;
use crate::quantity::{Bytes, MIB, Percent, number};
use crate::request::{GpuRequests, Request};
use crate::setting::{Setting, Sourced};

/// Variable with the fraction of the GPU's memory, 0 to 1.
pub const PORTION: &str = "GPU_PORTION";
/// Annotation of the pod with the requested fraction.
pub const FRACTION: &str = "gpu-fraction";
/// Annotation of the pod with the requested memory in MiB.
pub const MEMORY: &str = "gpu-memory";
/// Annotation of the pod with the container that shares the GPU, unless that is the first one.
pub const CONTAINER: &str = "gpu-fraction-container-name";

/// Reads `GPU_PORTION`, and the pod's annotations if they reach the bundle.
///
/// # Errors
/// The fraction is invalid, or the pod requests a fraction and this container has GPUs but no fraction.
pub fn read(sources: &Sources<'_>, request: &Request) -> Result<GpuRequests> {
    let mut requests = GpuRequests::default();
    let annotation = |key: &str| sources.annotations.get(key).map(|value| Setting::annotation(key, value));
    let wanted = annotation(FRACTION).or(annotation(MEMORY));
    let Some(portion) = portion(sources.env)? else {
        // The image may request all GPUs by itself.
        return match wanted {
            Some(wanted) if request.visible.has_gpus() && !scheduling::has_decision(sources.annotations) => Err(wanted.refused(format!(
                "a container with {PORTION} or without GPUs: this one has GPUs, and the fraction that was decided for it is unknown"
            ))),
            _ => Ok(requests),
        };
    };
    if portion.value == Percent::MAX {
        return Ok(requests);
    }
    // If the pod requests an amount, the fraction is that amount, rounded.
    let mebibytes = |text: &str| Bytes::new(number(text)?.checked_mul(MIB)?);
    let memory = annotation(MEMORY).map(|setting| parse(setting, mebibytes, "a positive integer (MiB)"));
    requests.all.memory = memory.transpose()?;
    if requests.all.memory.is_none() {
        requests.all.memory_percent = Some(portion);
    }
    Ok(requests)
}

/// Reads the fraction in percent, rounded down.
fn portion(env: &BTreeMap<String, String>) -> Result<Option<Sourced<Percent>>> {
    let Some(value) = env.get(PORTION) else { return Ok(None) };
    let percent = |text: &str| {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
        let is_digits = |part: &str| !part.is_empty() && part.len() <= 18 && part.bytes().all(|byte| byte.is_ascii_digit());
        if !is_digits(whole) || !is_digits(fraction) {
            return None;
        }
        let hundredths: u32 = format!("{fraction:0<2}")[..2].parse().ok()?;
        whole.parse::<u32>().ok()?.checked_mul(100)?.checked_add(hundredths).and_then(Percent::new)
    };
    parse(Setting::environment(PORTION, value), percent, "a fraction from 0.01 to 1, such as 0.5").map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::Visible;

    fn read_all(annotations: &[(&str, &str)], env: &[(&str, &str)]) -> Result<(Option<u64>, Option<u32>)> {
        let map = |pairs: &[(&str, &str)]| pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let (annotations, env): (BTreeMap<_, _>, BTreeMap<_, _>) = (map(annotations), map(env));
        let visible = env.get("NVIDIA_VISIBLE_DEVICES").map(|value| Visible::parse(value)).unwrap_or_default();
        let request = Request { visible, ..Request::default() };
        let sources = Sources { annotations: &annotations, env: &env, container: Some("main"), alnair_limits: None, claims: &[] };
        let all = read(&sources, &request)?.all;
        Ok((all.memory.map(|memory| memory.value.get() / MIB), all.memory_percent.map(|percent| percent.value.get())))
    }

    #[test]
    fn fractions_and_amounts() {
        let gpu = ("NVIDIA_VISIBLE_DEVICES", "0");
        assert_eq!(read_all(&[], &[("GPU_PORTION", "0.5"), gpu]).unwrap(), (None, Some(50)));
        assert_eq!(read_all(&[("gpu-fraction", "0.25")], &[("GPU_PORTION", "0.25"), gpu]).unwrap(), (None, Some(25)));
        assert_eq!(read_all(&[], &[("GPU_PORTION", "0.339"), gpu]).unwrap(), (None, Some(33)), "rounded down");
        assert_eq!(read_all(&[("gpu-memory", "4096")], &[("GPU_PORTION", "0.18"), gpu]).unwrap(), (Some(4096), None));
        assert_eq!(read_all(&[], &[("GPU_PORTION", "1"), gpu]).unwrap(), (None, None), "a whole GPU");
        assert_eq!(read_all(&[], &[gpu]).unwrap(), (None, None));
    }

    #[test]
    fn invalid_and_unknown_fractions_are_refused() {
        for text in ["0", "0.001", "1.5", "-1", "half", ".5", "0.", ""] {
            assert!(read_all(&[], &[("GPU_PORTION", text)]).unwrap_err().to_string().contains("from 0.01 to 1"), "{text:?}");
        }
        let other = read_all(&[("gpu-fraction", "0.5")], &[("NVIDIA_VISIBLE_DEVICES", "all")]).unwrap_err().to_string();
        assert!(other.contains(r#"gpu-fraction: "0.5""#) && other.contains("is unknown"), "{other}");
        assert_eq!(read_all(&[("gpu-fraction", "0.5")], &[]).unwrap(), (None, None), "a container without GPUs");
    }
}
