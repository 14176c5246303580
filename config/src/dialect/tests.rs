//! All dialects, through `read`.

use std::collections::BTreeMap;

use super::*;
use crate::devices;
use crate::quantity::Percent;
use crate::quantity::{GIB, MIB};
use crate::setting::Sourced;

const A: &str = "GPU-aaaaaaaa-0000-0000-0000-000000000001";
const B: &str = "GPU-bbbbbbbb-0000-0000-0000-000000000002";

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn request(annotations: &[(&str, &str)], env: &[(&str, &str)]) -> Result<Request> {
    let (annotations, env) = (map(annotations), map(env));
    read(&Sources { annotations: &annotations, env: &env, container: Some("main"), alnair_limits: None, claims: &[] })
}

/// Returns memory in bytes, its percentage, cores and soft cores of the GPU at an index.
fn figures(request: &Request, index: u32) -> (Option<u64>, Option<u32>, Option<u32>, Option<u32>) {
    let gpu = request.for_gpu(Some(index), None);
    let figure = |percent: Option<Sourced<Percent>>| percent.map(|percent| percent.value.get());
    (gpu.memory.map(|memory| memory.value.get()), figure(gpu.memory_percent), figure(gpu.cores), figure(gpu.cores_soft))
}

#[test]
fn valid_settings() {
    type Pairs = &'static [(&'static str, &'static str)];
    type Figures = (Option<u64>, Option<u32>, Option<u32>, Option<u32>);
    let cases: &[(&str, Pairs, Pairs, Figures)] = &[
        ("no settings", &[], &[], (None, None, None, None)),
        ("annotations", &[("nvidia.com/gpumem", "3000"), ("nvidia.com/gpucores", "30")], &[], (Some(3000 * MIB), None, Some(30), None)),
        ("a percentage of memory", &[("nvidia.com/gpumem-percentage", "25")], &[], (None, Some(25), None, None)),
        ("a soft limit", &[("nvidia.com/gpucores", "30"), ("nvidia.com/gpucores-soft", "60")], &[], (None, None, Some(30), Some(60))),
        (
            "the container's own key wins, even if it is larger",
            &[("nvidia.com/gpumem", "1000"), ("nvidia.com/gpumem.main", "2000"), ("nvidia.com/gpumem.other", "1")],
            &[],
            (Some(2000 * MIB), None, None, None),
        ),
        ("HAMi-core", &[], &[("CUDA_DEVICE_MEMORY_LIMIT", "1g"), ("CUDA_DEVICE_SM_LIMIT", "50")], (Some(GIB), None, Some(50), None)),
        ("HAMi-core: no compute limit", &[], &[("CUDA_DEVICE_SM_LIMIT", "0")], (None, None, None, None)),
        (
            "HAMi-core: the GPU's own variable wins",
            &[],
            &[("CUDA_DEVICE_MEMORY_LIMIT", "1g"), ("CUDA_DEVICE_MEMORY_LIMIT_0", "2g"), ("CUDA_DEVICE_MEMORY_LIMIT_1", "1m")],
            (Some(2 * GIB), None, None, None),
        ),
        (
            "vgpu-manager",
            &[],
            &[("CUDA_MEM_LIMIT_0", "4g"), ("CUDA_CORE_LIMIT", "20"), ("CUDA_CORE_SOFT_LIMIT_0", "40")],
            (Some(4 * GIB), None, Some(20), Some(40)),
        ),
        ("vgpu-controller shares its names", &[], &[("CUDA_MEM_LIMIT_0", "1073741824")], (Some(GIB), None, None, None)),
        ("Alnair", &[], &[("ALNAIR_VGPU_COMPUTE_PERCENTILE", "30")], (None, None, Some(30), None)),
        ("Alnair: 100 is no limit", &[], &[("ALNAIR_VGPU_COMPUTE_PERCENTILE", "100")], (None, None, None, None)),
        (
            "the stricter dialect wins: the image's environment cannot raise the pod's limit",
            &[("nvidia.com/gpumem", "1024")],
            &[("CUDA_DEVICE_MEMORY_LIMIT", "100g")],
            (Some(GIB), None, None, None),
        ),
        (
            "the stricter dialect wins: the pod's annotation cannot raise the device plugin's limit",
            &[("nvidia.com/gpumem", "99999")],
            &[("CUDA_DEVICE_MEMORY_LIMIT_0", "1g")],
            (Some(GIB), None, None, None),
        ),
        (
            "annotations of other programs",
            &[("nvidia.com/gpu.present", "true"), ("nvidia.com/gpu.memory", "x")],
            &[],
            (None, None, None, None),
        ),
    ];
    for (description, annotations, env, expected) in cases {
        let request = request(annotations, env).unwrap_or_else(|why| panic!("{description}: {why}"));
        assert_eq!(figures(&request, 0), *expected, "{description}");
    }
}

#[test]
fn invalid_settings_are_refused() {
    type Pairs = &'static [(&'static str, &'static str)];
    let cases: &[(&str, Pairs, Pairs, &str)] = &[
        ("an unknown unit", &[("nvidia.com/gpumem", "10Q")], &[], r#"annotation nvidia.com/gpumem: "10Q": expected a positive integer"#),
        ("a negative amount", &[("nvidia.com/gpumem", "-1")], &[], r#"nvidia.com/gpumem: "-1""#),
        ("zero", &[("nvidia.com/gpumem", "0")], &[], r#"nvidia.com/gpumem: "0""#),
        ("a newline", &[("nvidia.com/gpumem", "1024\nx")], &[], r#"nvidia.com/gpumem: "1024\nx""#),
        ("an empty value", &[("nvidia.com/gpumem", "")], &[], r#"nvidia.com/gpumem: """#),
        ("the container's own key", &[("nvidia.com/gpumem.main", "10Q")], &[], r#"nvidia.com/gpumem.main: "10Q""#),
        ("101 percent of memory", &[("nvidia.com/gpumem-percentage", "101")], &[], "from 1 to 100"),
        ("101 percent of cores", &[("nvidia.com/gpucores", "101")], &[], r#"nvidia.com/gpucores: "101""#),
        ("zero cores", &[("nvidia.com/gpucores", "0")], &[], r#"nvidia.com/gpucores: "0""#),
        (
            "a soft limit below the hard one",
            &[("nvidia.com/gpucores", "50"), ("nvidia.com/gpucores-soft", "40")],
            &[],
            "at least the nvidia.com/gpucores",
        ),
        ("a soft limit without a hard one", &[("nvidia.com/gpucores-soft", "40")], &[], "which is not set"),
        ("zero GPUs", &[("nvidia.com/gpu", "0")], &[], "a number of GPUs"),
        ("more GPUs than the maximum", &[("nvidia.com/gpu", "17")], &[], "from 1 to 16"),
        ("not a UUID", &[("nvidia.com/use-gpuuuid", "GPU-1")], &[], "a comma-separated list of UUIDs"),
        ("an empty list item", &[("nvidia.com/use-gputype", "H200,,A100")], &[], "a comma-separated list of parts"),
        ("an unknown priority", &[("nvidia.com/priority", "2")], &[], "0 (high) or 1"),
        ("an unknown switch value", &[("nvidia.com/gpumem-oversubscribe", "yes")], &[], "true, false, 1 or 0"),
        (
            "HAMi-core reads 10 bytes",
            &[],
            &[("CUDA_DEVICE_MEMORY_LIMIT", "10Gi")],
            r#"environment variable CUDA_DEVICE_MEMORY_LIMIT: "10Gi""#,
        ),
        ("HAMi-core reads 1 GiB", &[], &[("CUDA_DEVICE_MEMORY_LIMIT_0", "1.5g")], r#"CUDA_DEVICE_MEMORY_LIMIT_0: "1.5g""#),
        ("HAMi-core reads 8 MiB", &[], &[("CUDA_DEVICE_MEMORY_LIMIT", "010m")], r#": "010m""#),
        ("HAMi-core reads no limit", &[], &[("CUDA_DEVICE_MEMORY_LIMIT", "-1")], r#": "-1""#),
        ("an index above the maximum", &[], &[("CUDA_DEVICE_MEMORY_LIMIT_16", "1g")], "with i from 0 to 15"),
        ("an index with a leading zero", &[], &[("CUDA_MEM_LIMIT_00", "1g")], "CUDA_MEM_LIMIT_<i>"),
        ("an index that is not a number", &[], &[("CUDA_DEVICE_SM_LIMIT_x", "1")], "CUDA_DEVICE_SM_LIMIT_<i>"),
        ("cores as a word", &[], &[("CUDA_DEVICE_SM_LIMIT", "half")], "0 and 100 or more mean no limit"),
        ("an unknown policy", &[], &[("GPU_CORE_UTILIZATION_POLICY", "sometimes")], "default, force or disable"),
        ("a ratio below one", &[], &[("CUDA_MEM_RATIO", "0.5")], "a factor from 1"),
        ("a relative cache path", &[], &[("CUDA_DEVICE_MEMORY_SHARED_CACHE", "x.cache")], "an absolute path"),
        ("an incomplete decision", &[("hami.io/vgpu-devices-allocated", "GPU-x,NVIDIA,3000:;")], &[], "UUID,NVIDIA,<MiB>,<cores>"),
    ];
    for (description, annotations, env, expected) in cases {
        let message = request(annotations, env).map(|_| ()).expect_err(description).to_string();
        assert!(message.contains(expected), "{description}: {message}");
        assert!(!message.chars().any(char::is_control), "{description}: {message:?}");
    }
}

#[test]
fn container_keys_need_the_containers_name() {
    let (annotations, env) = (map(&[("nvidia.com/gpumem.main", "1024")]), map(&[]));
    let unnamed = Sources { annotations: &annotations, env: &env, container: None, alnair_limits: None, claims: &[] };
    assert!(read(&unnamed).unwrap_err().to_string().contains("passes the container's name"));
    let other = Sources { container: Some("other"), ..unnamed };
    assert_eq!(read(&other).unwrap(), Request::default());
}

#[test]
fn schedulers_decisions() {
    let decision = format!("{A},NVIDIA,3000,30:;{B},NVIDIA,5000,0:{A},NVIDIA,1000,100:;");
    let hami: &[(&str, &str)] = &[("hami.io/vgpu-devices-allocated", &decision)];
    let memory = |request: &Request, uuid: &str| request.for_gpu(None, devices::uuid(uuid)).memory.map(|memory| memory.value.get() / MIB);
    let cores = |request: &Request, uuid: &str| request.for_gpu(None, devices::uuid(uuid)).cores.map(|cores| cores.value.get());

    let seen = request(hami, &[]).unwrap();
    assert_eq!((memory(&seen, A), cores(&seen, A)), (Some(1000), Some(30)), "without visible GPUs, the stricter of two entries");
    let why = request(hami, &[("NVIDIA_VISIBLE_DEVICES", A)]).unwrap_err().to_string();
    assert!(why.contains("ambiguous") && why.contains(A), "{why}");
    let both = format!("{A},{B}");
    let chosen = [hami, &[("nvidia.com/use-gpuuuid", both.as_str())]].concat();
    let seen = request(&chosen, &[("NVIDIA_VISIBLE_DEVICES", B)]).unwrap();
    assert!(seen.choice.is_empty(), "the scheduler has applied the choice");
    assert_eq!((memory(&seen, B), cores(&seen, B)), (Some(5000), None));

    let seen = request(hami, &[("NVIDIA_VISIBLE_DEVICES", B)]).unwrap();
    assert_eq!((memory(&seen, A), memory(&seen, B)), (None, Some(5000)), "only visible GPUs");

    let seen = request(hami, &[("CUDA_DEVICE_MEMORY_LIMIT_0", "7000m")]).unwrap();
    assert_eq!((memory(&seen, A), figures(&seen, 0).0), (None, Some(7000 * MIB)), "the environment has precedence");

    let volcano = format!("{A},NVIDIA,2000,20:;{B},Ascend,9,9");
    let seen = request(&[("volcano.sh/vgpu-ids-new", &volcano)], &[]).unwrap();
    assert_eq!((memory(&seen, A), memory(&seen, B)), (Some(2000), None), "other vendors' devices are ignored");

    let early = request(&[("hami.io/vgpu-devices-to-allocate", &decision), ("hami.io/bind-phase", "x")], &[]).unwrap();
    assert_eq!(early, Request::default());
}

#[test]
fn alnairs_limits_file() {
    let (annotations, env) = (map(&[]), map(&[("ALNAIR_WORKSPACE_PATH", "/w")]));
    let with = |limits| read(&Sources { annotations: &annotations, env: &env, container: None, alnair_limits: limits, claims: &[] });
    assert_eq!(figures(&with(Some("vmem:1073741824")).unwrap(), 0).0, Some(GIB));
    assert_eq!(figures(&with(Some("other:1\n")).unwrap(), 0).0, None);
    assert!(with(Some("vmem:1g")).unwrap_err().to_string().contains(r#"file vmem: "1g""#));
}

#[test]
fn settings_for_the_whole_container() {
    let seen = request(
        &[("nvidia.com/priority", "0")],
        &[
            ("CUDA_TASK_PRIORITY", "1"),
            ("CUDA_DISABLE_CONTROL", "true"),
            ("GPU_CORE_UTILIZATION_POLICY", "DISABLE"),
            ("LIBCUDA_LOG_LEVEL", "4"),
            ("LOGGER_LEVEL", "0"),
            ("CUDA_DEVICE_MEMORY_SHARED_CACHE", "/tmp/cudevshr.cache"),
            ("PFLOG", "/profile"),
            ("NVIDIA_DRIVER_CAPABILITIES", "all"),
        ],
    )
    .unwrap();
    assert_eq!(seen.priority.map(|priority| priority.value), Some(1), "the lower of two priorities");
    assert_eq!(seen.opt_out.map(|setting| setting.key), Some("CUDA_DISABLE_CONTROL".to_owned()));
    assert_eq!(seen.cores_opt_out.map(|setting| setting.key), Some("GPU_CORE_UTILIZATION_POLICY".to_owned()));
    assert_eq!(seen.log_level, Some(vgpu_region::limits::LogLevel::Debug));
    assert_eq!(seen.hami_cache.map(|path| path.value), Some("/tmp/cudevshr.cache".to_owned()));
    assert_eq!(seen.trace_dir.map(|path| path.value), Some("/profile".to_owned()));
    assert_eq!(seen.driver_capabilities.map(|setting| setting.value), Some("all".to_owned()));
    let level = |env: &[(&str, &str)]| request(&[], env).map(|seen| seen.log_level);
    use vgpu_region::limits::LogLevel;
    for (env, expected) in [
        (&[("LIBCUDA_LOG_LEVEL", "3"), ("LOGGER_LEVEL", "0")][..], Some(LogLevel::Info)),
        (&[("LOGGER_LEVEL", "5")], Some(LogLevel::Debug)),
        (&[("LOGGER_LEVEL", "6")], None),
        (&[("LIBCUDA_LOG_LEVEL", "4"), ("VGPU_LOG", "off")], Some(LogLevel::Off)),
        (&[("VGPU_LOG", "2")], Some(LogLevel::Warn)),
    ] {
        assert_eq!(level(env).unwrap(), expected, "{env:?}");
    }
    assert!(level(&[("VGPU_LOG", "loud")]).unwrap_err().to_string().contains("VGPU_LOG"));
    assert!(level(&[("LIBCUDA_LOG_LEVEL", "5")]).is_err());
    let ignored = request(&[], &[("LOGGER_LEVEL", "info"), ("PFLOG", "relative"), ("CUDA_DISABLE_CONTROL", "false")]).unwrap();
    assert_eq!(ignored, Request::default());
}

#[test]
fn oversubscription() {
    use crate::request::Spill;
    let cases = [
        ("vgpu", request(&[("nvidia.com/gpumem-oversubscribe", "true")], &[]), Some(Spill::Allowed)),
        ("HAMi", request(&[], &[("CUDA_OVERSUBSCRIBE", "true")]), Some(Spill::Allowed)),
        ("vgpu-controller", request(&[], &[("CUDA_MEMORY_OVERSUBSCRIBE", "TRUE")]), Some(Spill::Allowed)),
        ("vgpu-manager", request(&[], &[("CUDA_MEM_OVERSOLD", "1")]), Some(Spill::Allowed)),
        ("vgpu-manager's ratio", request(&[], &[("CUDA_MEM_RATIO_0", "1.5")]), Some(Spill::Ratio(1500))),
        ("a ratio of 1 spills nothing", request(&[], &[("CUDA_MEM_RATIO", "1")]), None),
        ("switched off", request(&[], &[("CUDA_OVERSUBSCRIBE", "false")]), None),
    ];
    for (description, request, expected) in cases {
        let spill = request.unwrap().for_gpu(Some(0), None).spill.map(|spill| spill.value);
        assert_eq!(spill, expected, "{description}");
    }
}
