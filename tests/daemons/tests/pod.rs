//! Pods through containerd's CRI, as a kubelet runs them: annotations of pods and containers; sandboxes are unchanged.

use vgpu_daemon_tests::cri::Cri;
use vgpu_daemon_tests::{Containerd, IS_LIMITED, IS_UNLIMITED, Installation, PROBE, Release, oci_archive, run};

const IMAGE: &str = "docker.io/library/test:1";
/// Operator's configuration for a machine without AppArmor and without the right to lower OOM scores.
const V2: &str = r#"version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "docker.io/library/test:1"
  disable_apparmor = true
  restrict_oom_score_adj = true
"#;
const V3: &str = r#"version = 3
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "docker.io/library/test:1"
[plugins."io.containerd.cri.v1.runtime"]
  disable_apparmor = true
  restrict_oom_score_adj = true
"#;

#[test]
#[ignore = "needs root, containerd and runc; make test runs it"]
fn each_container_of_a_pod_gets_its_own_limit() {
    for release in Release::all("containerd") {
        let newer = run(release.command("containerd").arg("--version")).contains("containerd/v2");
        let texts = if newer { &[V2, V3][..] } else { &[V2] };
        for (text, runtime) in texts.iter().flat_map(|text| release.runtimes().into_iter().map(move |runtime| (*text, runtime))) {
            let case = format!("{}, {}, {}", release.name, text.lines().next().unwrap(), runtime.name());
            let vgpu = Installation::with_runtime(runtime);
            let test = Containerd::new(release.clone(), text).with_runtime(runtime);
            test.configure(&vgpu.runtime(), &[]);
            let _daemon = test.start();
            let archive = oci_archive(test.dir(), IMAGE, &["/bin/sleep", "1000"]);
            run(test.ctr().args(["--namespace", "k8s.io", "images", "import"]).arg(archive));
            let cri = Cri::new(test.socket());
            cri.wait_for_image(IMAGE).unwrap_or_else(|error| panic!("{case}: {error}"));
            let sleep = ["/bin/sleep", "1000"];
            let probe = ["/bin/sh", "-c", PROBE];

            let annotations = [("nvidia.com/gpumem", "2048"), ("nvidia.com/gpumem.small", "1024"), ("other.io/x", "y")];
            let pod = cri.pod("asks", "vgpu", &annotations).unwrap_or_else(|error| panic!("{case}: {error}"));
            assert!(vgpu.containers().is_empty(), "{case}: the sandbox has no limits");
            for (name, own, bytes) in
                [("large", &[][..], 2u64 << 30), ("small", &[], 1 << 30), ("own", &[("nvidia.com/gpumem", "512")], 512 << 20)]
            {
                let before = vgpu.containers();
                let id = pod.start(name, IMAGE, own, &sleep).unwrap_or_else(|error| panic!("{case}: {name}: {error}"));
                assert_eq!(pod.exec(&id, &probe).unwrap(), IS_LIMITED, "{case}: {name}");
                let new: Vec<_> = vgpu.containers().into_iter().filter(|one| !before.contains(one)).collect();
                let record = std::fs::read_to_string(new[0].join("container.json")).unwrap();
                assert!(record.contains(&bytes.to_string()), "{case}: {name}: {record}");
                assert!(record.contains("asks") && record.contains(name), "{case}: pod and container by name: {record}");
            }
            let error = pod.start("bad", IMAGE, &[("nvidia.com/gpumem", "10Q")], &sleep).unwrap_err().to_string();
            assert!(error.contains("nvidia.com/gpumem") && error.contains("10Q"), "{case}: {error}");
            drop(pod);
            assert!(vgpu.containers().is_empty(), "{case}: {:?}", vgpu.containers());

            let pod = cri.pod("silent", "vgpu", &[]).unwrap();
            let id = pod.start("main", IMAGE, &[], &sleep).unwrap();
            assert_eq!(pod.exec(&id, &probe).unwrap(), IS_UNLIMITED, "{case}: no request");
            drop(pod);

            let pod = cri.pod("default", "", &annotations).unwrap();
            let id = pod.start("main", IMAGE, &[], &sleep).unwrap();
            assert_eq!(pod.exec(&id, &probe).unwrap(), IS_UNLIMITED, "{case}: another handler");
        }
    }
}
