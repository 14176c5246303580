//! State directory for tests, whose containers consist of their files alone.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use vgpu_config::inventory::{Gpu, Inventory};
use vgpu_config::limits::{GpuLimits, Limits};
use vgpu_oci_hook::process::Process;
use vgpu_oci_hook::state::{CONTAINERS, LIMITS, RECORD, REGION, Record};
use vgpu_region::map;
use vgpu_region::uuid::Uuid;

/// State directory of a host.
pub(crate) struct Host(TempDir);

impl Host {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn dir(&self, id: &str) -> PathBuf {
        self.path().join(CONTAINERS).join(id)
    }

    /// Creates a container that lives as long as this process.
    pub fn container(&self, id: &str, name: &str, pod: &str, gpus: &[GpuLimits]) {
        let dir = self.dir(id);
        fs::create_dir_all(&dir).unwrap();
        let bundle = self.path().join("bundles").join(id);
        fs::create_dir_all(&bundle).unwrap();
        let limits = Limits { gpus: gpus.to_vec(), priority: 1, ..Limits::default() };
        fs::write(dir.join(LIMITS), limits.page().unwrap().as_bytes()).unwrap();
        map::format(File::create(dir.join(REGION)).unwrap().as_raw_fd()).unwrap();
        self.write(&Record {
            id: id.to_owned(),
            bundle,
            rootfs: "/nowhere".into(),
            container: Some(name.to_owned()),
            pod: Some(pod.to_owned()),
            namespace: Some("ns".to_owned()),
            pod_uid: None,
            limits,
            decided: None,
            library: "/nowhere".into(),
            preload: true,
            replace: false,
            library_path: String::new(),
            runtime: None,
            runtime_roots: Vec::new(),
            creator: Process::this(),
            init: None,
            created: 1,
            program: None,
        });
    }

    fn write(&self, record: &Record) {
        fs::write(self.dir(&record.id).join(RECORD), serde_json::to_vec(record).unwrap()).unwrap();
    }

    pub fn record(&self, id: &str) -> Record {
        serde_json::from_slice(&fs::read(self.dir(id).join(RECORD)).unwrap()).unwrap()
    }

    /// Makes the container look as if its processes had exited.
    pub fn end(&self, id: &str) {
        self.write(&Record { creator: Process { pid: u32::MAX, start_time: 0 }, ..self.record(id) });
    }

    /// Writes `config.json` of the container's bundle.
    pub fn bundle(&self, id: &str, json: &str) {
        fs::write(self.record(id).bundle.join("config.json"), json).unwrap();
    }

    /// Returns an inventory of `count` GPUs with 80 GiB each, and their UUIDs.
    pub fn inventory(count: u8) -> (Inventory, Vec<Uuid>) {
        let uuids: Vec<Uuid> = (1..=count).map(|number| Uuid([number; 16])).collect();
        let gpu = |(index, uuid): (usize, &Uuid)| Gpu {
            index: index as u32,
            uuid: uuid.to_string(),
            name: "Test".to_owned(),
            memory: 80 << 30,
            minor: Some(index as u32),
            mig: Vec::new(),
        };
        (Inventory { gpus: uuids.iter().enumerate().map(gpu).collect() }, uuids)
    }
}
