//! KAI's fractions. KAI chooses the GPU and enforces nothing: the container that shares one gets its part of the memory in `GPU_PORTION`
//! and the GPU in `NVIDIA_VISIBLE_DEVICES`; the others of its pod get neither.

use std::collections::BTreeMap;

use crate::dialect::parse::said;
use crate::dialect::scheduling;
use crate::dialect::sources::Sources;
use crate::error::Result;
use crate::quantity::{MIB, number};
use crate::request::{Claim, Request};
use crate::setting::{Said, Setting};

/// The part of the GPU's memory, 0 to 1.
pub const PORTION: &str = "GPU_PORTION";
/// The pod's annotation of the part that it wants.
pub const FRACTION: &str = "gpu-fraction";
/// The pod's annotation of the memory that it wants, in MiB.
pub const MEMORY: &str = "gpu-memory";
/// The pod's annotation of the container that shares the GPU, if that is not the first.
pub const CONTAINER: &str = "gpu-fraction-container-name";

/// Reads `GPU_PORTION`, and the pod's annotations where they reach the bundle.
///
/// # Errors
/// A part that is none, or a container with GPUs in a pod with a fraction that is not for it.
pub fn read(sources: &Sources<'_>, request: &Request) -> Result<Claim> {
    let mut claim = Claim::default();
    let annotation = |key: &str| sources.annotations.get(key).map(|value| Setting::annotation(key, value));
    let wanted = annotation(FRACTION).or(annotation(MEMORY));
    let Some(portion) = portion(sources.env)? else {
        // Devices of its own come without a fraction; but what of an image that asks for all of them?
        return match wanted {
            Some(wanted) if request.visible.gives() && !scheduling::decided(sources.annotations) => Err(wanted.refused(format!(
                "a container that KAI has given its part by {PORTION}, or one without GPUs: this one has GPUs, and which part of them was \
                 decided for it cannot be told"
            ))),
            _ => Ok(claim),
        };
    };
    if portion.value >= 100 {
        return Ok(claim);
    }
    // Where the pod asked for an amount, the part is that amount's, rounded.
    claim.all.memory = annotation(MEMORY)
        .map(|setting| said(setting, |text| number(text)?.checked_mul(MIB), "a whole number of MiB above 0"))
        .transpose()?;
    if claim.all.memory.is_none() {
        claim.all.memory_percent = Some(portion);
    }
    Ok(claim)
}

/// The part in percent, cut down to a whole number of them.
fn portion(env: &BTreeMap<String, String>) -> Result<Option<Said<u32>>> {
    let Some(value) = env.get(PORTION) else { return Ok(None) };
    let percent = |text: &str| {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
        let digits = |part: &str| !part.is_empty() && part.len() <= 18 && part.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(whole) || !digits(fraction) {
            return None;
        }
        let hundredths: u32 = format!("{fraction:0<2}")[..2].parse().ok()?;
        whole.parse::<u32>().ok()?.checked_mul(100)?.checked_add(hundredths).filter(|percent| (1..=100).contains(percent))
    };
    said(Setting::environment(PORTION, value), percent, "a part from 0.01 to 1, such as 0.5").map(Some)
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
        Ok((all.memory.map(|said| said.value / MIB), all.memory_percent.map(|said| said.value)))
    }

    #[test]
    fn parts_and_amounts() {
        let gpu = ("NVIDIA_VISIBLE_DEVICES", "0");
        assert_eq!(read_all(&[], &[("GPU_PORTION", "0.5"), gpu]).unwrap(), (None, Some(50)));
        assert_eq!(read_all(&[("gpu-fraction", "0.25")], &[("GPU_PORTION", "0.25"), gpu]).unwrap(), (None, Some(25)));
        assert_eq!(read_all(&[], &[("GPU_PORTION", "0.339"), gpu]).unwrap(), (None, Some(33)), "never more");
        assert_eq!(read_all(&[("gpu-memory", "4096")], &[("GPU_PORTION", "0.18"), gpu]).unwrap(), (Some(4096), None));
        assert_eq!(read_all(&[], &[("GPU_PORTION", "1"), gpu]).unwrap(), (None, None), "a whole GPU");
        assert_eq!(read_all(&[], &[gpu]).unwrap(), (None, None));
    }

    #[test]
    fn what_cannot_be_told_is_refused() {
        for text in ["0", "0.001", "1.5", "-1", "half", ".5", "0.", ""] {
            assert!(read_all(&[], &[("GPU_PORTION", text)]).unwrap_err().to_string().contains("from 0.01 to 1"), "{text:?}");
        }
        let other = read_all(&[("gpu-fraction", "0.5")], &[("NVIDIA_VISIBLE_DEVICES", "all")]).unwrap_err().to_string();
        assert!(other.contains(r#"gpu-fraction="0.5""#) && other.contains("cannot be told"), "{other}");
        assert_eq!(read_all(&[("gpu-fraction", "0.5")], &[]).unwrap(), (None, None), "a container without GPUs");
    }
}
