//! The webhook as the API server calls it: reviews over TLS of pods with HAMi's resources.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::common::api_server::{Cluster, NODE, SLICES};
use crate::common::schemas::Schemas;
use crate::common::wait_for;
use base64::Engine as _;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::ServerCertVerifier;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use vgpu_dra::webhook::certificate::OwnCertificate;
use vgpu_dra::webhook::tls::Tls;

const TEMPLATES: &str = "/apis/resource.k8s.io/v1/namespaces/team/resourceclaimtemplates";

/// The webhook as a program. Dropping it kills it.
struct Webhook {
    child: Child,
    address: String,
    folder: tempfile::TempDir,
}

impl Drop for Webhook {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Certificate chain and key of a client.
type Issued = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// Returns a CA in PEM, and a client's certificate that it has issued.
fn client_ca() -> (String, Issued) {
    let mut parameters = rcgen::CertificateParams::new([]).unwrap();
    parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca_key = rcgen::KeyPair::generate().unwrap();
    let ca = parameters.self_signed(&ca_key).unwrap().pem();
    let issuer = rcgen::Issuer::new(parameters, ca_key);
    let mut parameters = rcgen::CertificateParams::new(["kube-apiserver".to_owned()]).unwrap();
    parameters.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = parameters.signed_by(&key, &issuer).unwrap();
    (ca, (vec![certificate.der().clone()], PrivateKeyDer::try_from(key.serialize_der()).unwrap()))
}

/// Writes a new certificate and key for the server.
fn certify(folder: &Path) {
    let made = rcgen::generate_simple_self_signed(vec!["vgpu-webhook.team.svc".to_owned()]).unwrap();
    std::fs::write(folder.join("tls.key"), made.signing_key.serialize_pem()).unwrap();
    std::fs::write(folder.join("tls.crt"), made.cert.pem()).unwrap();
}

impl Webhook {
    fn start(cluster: &Cluster) -> Self {
        Self::start_with(cluster, |_| Vec::new())
    }

    /// Starts the webhook with more arguments, which may name files in its folder.
    fn start_with(cluster: &Cluster, more: impl FnOnce(&Path) -> Vec<String>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        certify(folder.path());
        std::fs::write(folder.path().join("kubeconfig"), cluster.kubeconfig()).unwrap();
        // Free a moment ago; another process could take it before the webhook does.
        let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let mut command = Command::new(env!("CARGO_BIN_EXE_vgpu-webhook"));
        command.args(["--listen", &address]);
        for (flag, file) in [("--certificate", "tls.crt"), ("--key", "tls.key"), ("--kubeconfig", "kubeconfig")] {
            command.arg(flag).arg(folder.path().join(file));
        }
        command.args(more(folder.path()));
        let webhook = Self { child: command.stdin(Stdio::null()).spawn().unwrap(), address, folder };
        wait_for("the webhook", || webhook.send("GET", "/healthz", "").ok().filter(|(code, _)| *code == 200));
        webhook
    }

    /// Sends one request, trusting the certificate that is in the file now.
    fn send(&self, method: &str, path: &str, body: &str) -> std::io::Result<(u16, String)> {
        self.send_as(None, method, path, body)
    }

    /// Sends one request as the owner of this certificate.
    #[tokio::main(flavor = "current_thread")]
    async fn send_as(&self, client: Option<&Issued>, method: &str, path: &str, body: &str) -> std::io::Result<(u16, String)> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.folder.path().join("tls.crt")).unwrap()).unwrap();
        let config = ClientConfig::builder().with_root_certificates(roots);
        let config = match client {
            Some((chain, key)) => config.with_client_auth_cert(chain.clone(), key.clone_key()).unwrap(),
            None => config.with_no_client_auth(),
        };
        let stream = tokio::net::TcpStream::connect(&self.address).await?;
        let name = ServerName::try_from("vgpu-webhook.team.svc").unwrap();
        let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: vgpu-webhook.team.svc\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).await?;
        // A server may answer before it has read everything.
        let _ = stream.write_all(body.as_bytes()).await;
        let mut response = Vec::new();
        // A server may close the connection without TLS' close_notify, which is an error here.
        let _ = stream.read_to_end(&mut response).await;
        let response = String::from_utf8_lossy(&response).into_owned();
        let code = response.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or_else(|| std::io::Error::other("no response"))?;
        Ok((code, response.split_once("\r\n\r\n").map_or(String::new(), |(_, body)| body.to_owned())))
    }

    fn review(&self, pod: &Value, dry_run: bool) -> Value {
        self.review_in("team", pod, dry_run)
    }

    fn review_in(&self, namespace: &str, pod: &Value, dry_run: bool) -> Value {
        let review = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": { "uid": "r", "operation": "CREATE", "namespace": namespace, "dryRun": dry_run, "object": pod },
        });
        let (code, body) = self.send("POST", "/mutate", &review.to_string()).unwrap();
        assert_eq!(code, 200, "{body}");
        let review: Value = serde_json::from_str(&body).unwrap();
        assert_eq!((&review["kind"], &review["response"]["uid"]), (&json!("AdmissionReview"), &json!("r")));
        review["response"].clone()
    }
}

/// Applies a response's patch to a pod.
fn patched(pod: &Value, response: &Value) -> Value {
    assert_eq!((&response["allowed"], &response["patchType"]), (&json!(true), &json!("JSONPatch")), "{response}");
    let patch = base64::engine::general_purpose::STANDARD.decode(response["patch"].as_str().unwrap()).unwrap();
    let patch: Value = serde_json::from_slice(&patch).unwrap();
    assert_eq!((patch.as_array().unwrap().len(), &patch[0]["op"], &patch[0]["path"]), (1, &json!("replace"), &json!("/spec")));
    let mut pod = pod.clone();
    pod["spec"] = patch[0]["value"].clone();
    pod
}

fn pod(limits: Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "generateName": "p-", "annotations": { "nvidia.com/use-gputype": "H200" } },
        "spec": { "containers": [{ "name": "main", "image": "i", "resources": { "limits": limits } }] },
    })
}

#[test]
fn hami_resources_become_claims() {
    let cluster = Cluster::start();
    let webhook = Webhook::start(&cluster);
    let wanted = pod(json!({ "nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30", "cpu": "1" }));

    let first = patched(&wanted, &webhook.review(&wanted, true));
    assert_eq!(cluster.objects(TEMPLATES), [] as [Value; 0], "a dry run must create nothing");
    assert_eq!(patched(&wanted, &webhook.review(&wanted, false)), first);
    assert_eq!(patched(&wanted, &webhook.review(&wanted, false)), first, "an equal pod must refer to the same template");
    assert_eq!(Schemas::of("v1.36").problems("Pod", &first).unwrap(), [] as [String; 0]);
    assert_eq!(first["spec"]["containers"][0]["resources"], json!({ "limits": { "cpu": "1" }, "claims": [{ "name": "vgpu-main" }] }));
    let templates = cluster.objects(TEMPLATES);
    assert_eq!(templates.len(), 1);
    assert_eq!(templates[0]["metadata"]["name"], first["spec"]["resourceClaims"][0]["resourceClaimTemplateName"]);
    let exactly = &templates[0]["spec"]["spec"]["devices"]["requests"][0]["exactly"];
    assert_eq!(exactly["capacity"]["requests"], json!({ "memory": "3000Mi", "cores": "30" }));
    assert!(exactly["selectors"][0]["cel"]["expression"].as_str().unwrap().contains(r#"["h200"]"#));

    let response = webhook.review(&pod(json!({ "nvidia.com/gpucores": 101 })), false);
    assert_eq!(response["allowed"], false);
    assert!(
        response["status"]["message"].as_str().unwrap().contains(r#"container main: nvidia.com/gpucores: "101": expected"#),
        "{response}"
    );
    assert_eq!(webhook.review(&pod(json!({ "cpu": 1 })), false), json!({ "uid": "r", "allowed": true }));
    assert_eq!(webhook.send("POST", "/mutate", "{}").unwrap().0, 400);
    assert_eq!(webhook.send("GET", "/", "").unwrap().0, 404);

    // The server uses a renewed certificate.
    std::thread::sleep(std::time::Duration::from_millis(20));
    certify(webhook.folder.path());
    wait_for("the new certificate", || webhook.send("GET", "/healthz", "").ok());
}

#[test]
fn percentages_refer_to_the_clusters_gpus() {
    let cluster = Cluster::start();
    let webhook = Webhook::start(&cluster);
    let half = pod(json!({ "nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 50 }));
    let refused = webhook.review(&half, false);
    assert!(refused["status"]["message"].as_str().unwrap().contains("no GPU with known memory"), "{refused}");
    let device = |name: &str, memory: &str| json!({ "name": name, "attributes": { "type": { "string": "gpu" } }, "capacity": { "memory": { "value": memory } } });
    let slice = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": { "name": "s" },
        "spec": { "driver": "gpu.vgpu", "nodeName": NODE, "pool": { "name": NODE, "generation": 1, "resourceSliceCount": 1 }, "devices": [device("a", "24Gi"), device("b", "24Gi")] },
    });
    cluster.put(&format!("{SLICES}/s"), slice);
    patched(&half, &webhook.review(&half, false));
    let templates = cluster.objects(TEMPLATES);
    assert_eq!(templates[0]["spec"]["spec"]["devices"]["requests"][0]["exactly"]["capacity"]["requests"]["memory"], "12Gi");
}

#[test]
fn malformed_pods_and_namespaces_do_no_harm() {
    let cluster = Cluster::start();
    let webhook = Webhook::start(&cluster);
    let whole = pod(json!({ "nvidia.com/gpu": 1 }));
    for spec in [json!("x"), json!(1), json!([]), json!({ "containers": "x" }), json!({ "containers": ["x", 1, null] })] {
        let mut malformed = whole.clone();
        malformed["spec"] = spec;
        assert_eq!(webhook.review(&malformed, false), json!({ "uid": "r", "allowed": true }));
    }
    for namespace in ["", "team/../kube-system", "team/resourceclaims?x=", "..", "Team", "a.b", "%2e%2e"] {
        let response = webhook.review_in(namespace, &whole, false);
        assert!(response["status"]["message"].as_str().unwrap().contains("expected a DNS label"), "{namespace}: {response}");
    }
    assert_eq!(cluster.log(), [] as [String; 0], "no request may be sent for them");
    patched(&whole, &webhook.review(&whole, false));
}

#[test]
fn quota_that_claims_would_evade_is_an_error() {
    const QUOTAS: &str = "/api/v1/namespaces/team/resourcequotas";
    let cluster = Cluster::start();
    let webhook = Webhook::start(&cluster);
    let whole = pod(json!({ "nvidia.com/gpu": 1 }));
    let quota = |hard: Value| json!({ "apiVersion": "v1", "kind": "ResourceQuota", "metadata": { "name": "q" }, "spec": { "hard": hard } });
    cluster.put(&format!("{QUOTAS}/q"), quota(json!({ "gpu.vgpu.deviceclass.resource.k8s.io/devices": "4", "requests.cpu": "8" })));
    patched(&whole, &webhook.review(&whole, false));
    cluster.put(&format!("{QUOTAS}/q"), quota(json!({ "requests.nvidia.com/gpumem": "8000" })));
    let response = webhook.review(&whole, true);
    let message = response["status"]["message"].as_str().unwrap();
    assert!(message.contains("ResourceQuota team/q: requests.nvidia.com/gpumem: pods with claims do not count"), "{response}");
    assert_eq!(webhook.review(&pod(json!({ "cpu": 1 })), false)["allowed"], true, "others are left alone");
}

#[test]
fn existing_template_must_be_as_the_webhook_creates_it() {
    let cluster = Cluster::start();
    let webhook = Webhook::start(&cluster);
    let whole = pod(json!({ "nvidia.com/gpu": 1 }));
    patched(&whole, &webhook.review(&whole, false));
    let created = cluster.objects(TEMPLATES).remove(0);
    let path = format!("{TEMPLATES}/{}", created["metadata"]["name"].as_str().unwrap());
    type Change = fn(&mut Value);
    let changes: [(&str, Change); 5] = [
        ("another specification", |it| it["spec"]["spec"]["devices"]["requests"][0]["exactly"]["count"] = json!(8)),
        ("metadata of its own for claims", |it| it["spec"]["metadata"] = json!({ "annotations": { "a": "b" } })),
        ("another creator", |it| it["metadata"]["labels"] = json!({})),
        ("an owner", |it| it["metadata"]["ownerReferences"] = json!([{ "apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u" }])),
        ("the end", |it| it["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z")),
    ];
    for (what, change) in changes {
        let mut other = created.clone();
        change(&mut other);
        cluster.put(&path, other);
        let response = webhook.review(&whole, false);
        assert_eq!(response["allowed"], false, "{what}");
        assert!(response["status"]["message"].as_str().unwrap().contains("was not created by vgpu-webhook"), "{what}: {response}");
    }
    cluster.put(&path, created);
    patched(&whole, &webhook.review(&whole, false));
}

#[test]
fn only_owners_of_a_certificate_may_call_a_webhook_with_a_client_ca() {
    let cluster = Cluster::start();
    let (ca, client) = client_ca();
    let webhook = Webhook::start_with(&cluster, |folder| {
        std::fs::write(folder.join("ca.crt"), ca).unwrap();
        vec!["--client-ca".to_owned(), folder.join("ca.crt").display().to_string()]
    });
    // The kubelet's probes have no certificate.
    assert_eq!(webhook.send("GET", "/healthz", "").unwrap().0, 200);
    let review = json!({ "request": { "uid": "r", "operation": "DELETE" } }).to_string();
    assert_eq!(webhook.send("POST", "/mutate", &review).unwrap().0, 401);
    assert_eq!(webhook.send_as(Some(&client), "POST", "/mutate", &review).unwrap().0, 200);
    let (_, stranger) = client_ca();
    assert!(webhook.send_as(Some(&stranger), "GET", "/healthz", "").is_err(), "a certificate of another CA");
}

#[test]
fn clients_cannot_exhaust_the_webhook() {
    let cluster = Cluster::start();
    let webhook = Webhook::start(&cluster);
    // More connections than the webhook keeps, without even a handshake.
    let idle: Vec<_> = (0..400).map(|_| std::net::TcpStream::connect(&webhook.address).unwrap()).collect();
    assert_eq!(webhook.send("GET", "/healthz", "").unwrap().0, 200);
    let large = format!("{{\"a\":\"{}\"}}", "x".repeat(3 << 20));
    // The response may be lost, as the webhook closes the connection without reading everything.
    assert!(webhook.send("POST", "/mutate", &large).is_ok_and(|(code, _)| code == 413));
    let deep = "[".repeat(1 << 20);
    assert_eq!(webhook.send("POST", "/mutate", &deep).unwrap().0, 400);
    drop(idle);
}

/// Returns the certificates in a base64-encoded PEM text.
fn decoded(text: &Value) -> Vec<CertificateDer<'static>> {
    let pem = base64::engine::general_purpose::STANDARD.decode(text.as_str().unwrap()).unwrap();
    CertificateDer::pem_slice_iter(&pem).map(|certificate| certificate.unwrap()).collect()
}

/// Returns whether a client that trusts this bundle accepts a certificate for the webhook's service at this time.
fn is_trusted(bundle: &Value, certificate: &CertificateDer<'_>, at: SystemTime) -> bool {
    let mut roots = RootCertStore::empty();
    for ca in decoded(bundle) {
        roots.add(ca).unwrap();
    }
    let verifier = WebPkiServerVerifier::builder(Arc::new(roots)).build().unwrap();
    let name = ServerName::try_from("vgpu-webhook.team.svc").unwrap();
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap();
    verifier.verify_server_cert(certificate, &[], &name, &[], UnixTime::since_unix_epoch(since)).is_ok()
}

#[tokio::test]
async fn own_certificate_is_made_shared_and_renewed() {
    const CONFIGURATIONS: &str = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
    let cluster = Cluster::start();
    let webhook = json!({
        "name": "pods.vgpu.io", "admissionReviewVersions": ["v1"], "sideEffects": "None",
        "clientConfig": { "service": { "name": "vgpu-webhook", "namespace": "team" } },
    });
    let configuration = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration", "metadata": { "name": "w" }, "webhooks": [webhook],
    });
    cluster.put(&format!("{CONFIGURATIONS}/w"), configuration);
    let bundle = || cluster.objects(CONFIGURATIONS)[0]["webhooks"][0]["clientConfig"]["caBundle"].clone();
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let replica = |index: usize| OwnCertificate {
        client: cluster.client(),
        namespace: "team".to_owned(),
        secret: "own".to_owned(),
        configuration: "w".to_owned(),
        hosts: vec!["vgpu-webhook.team.svc".to_owned()],
        files: (folders[index].path().join("tls.crt"), folders[index].path().join("tls.key")),
    };
    let served = |index: usize| CertificateDer::from_pem_file(folders[index].path().join("tls.crt")).unwrap();
    let (now, days) = (SystemTime::now(), |days: u64| Duration::from_secs(days * 24 * 3600));
    for index in [0, 1, 0] {
        replica(index).refresh(now).await.unwrap();
        assert!(is_trusted(&bundle(), &served(index), now) && served(0) == served(index));
    }
    assert!(!is_trusted(&bundle(), &served(0), now + days(366)), "valid for a year");
    let first = served(0);
    // The certificate is used, with its key.
    Tls::new(folders[0].path().join("tls.crt"), folders[0].path().join("tls.key"), None).acceptor().unwrap();
    // One replica renews the certificate. The other one may serve the old one for a while.
    let later = now + days(241);
    replica(0).refresh(later).await.unwrap();
    assert!(served(0) != first && is_trusted(&bundle(), &served(0), later + days(300)));
    assert!(served(1) == first && is_trusted(&bundle(), &served(1), later));
    replica(1).refresh(later).await.unwrap();
    assert_eq!(served(0), served(1));
    // The next renewal forgets the first CA.
    replica(1).refresh(later + days(241)).await.unwrap();
    assert_eq!(decoded(&bundle()).len(), 2);
    // Somebody empties the Secret.
    let mut secret = cluster.objects("/api/v1/namespaces/team/secrets").remove(0);
    secret["data"] = json!({});
    cluster.put("/api/v1/namespaces/team/secrets/own", secret);
    replica(0).refresh(now).await.unwrap();
    assert!(is_trusted(&bundle(), &served(0), now));
    assert_eq!(cluster.refused(), [] as [String; 0]);
}
