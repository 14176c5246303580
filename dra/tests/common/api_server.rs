//! Stand-in for the API server: stores objects by path, and follows those of Kubernetes' rules that the programs depend on.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper_util::rt::TokioIo;
use kube::{Client, Config};
use serde_json::{Value, json};
use tokio::sync::{broadcast, watch};

use super::schemas::Schemas;

pub const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";
pub const NODE: &str = "node-a";

/// Returns the path of a claim.
pub fn claim_path(name: &str) -> String {
    format!("/apis/resource.k8s.io/v1/namespaces/team/resourceclaims/{name}")
}

type Reply = Response<BoxBody<Bytes, Infallible>>;

struct State {
    objects: Mutex<BTreeMap<String, Value>>,
    version: Mutex<u64>,
    changes: broadcast::Sender<(String, Value)>,
    /// Fields of devices that are dropped, as if their feature gates were off.
    drops: Mutex<Vec<&'static str>>,
    /// Number of writes that succeed before all others fail; `None` for no limit.
    writes_left: Mutex<Option<u32>>,
    /// Problems of refused objects.
    refused: Mutex<Vec<String>>,
    log: Mutex<Vec<String>>,
    /// Path prefix of requests that are forbidden.
    forbidden: Mutex<Option<&'static str>>,
    /// When each request of `log` arrived.
    times: Mutex<Vec<Instant>>,
    /// True if requests for claims are answered.
    claims: watch::Sender<bool>,
    schemas: Schemas,
}

/// Running API server.
pub struct Cluster {
    pub address: SocketAddr,
    state: Arc<State>,
    /// Stops the server when dropped.
    _stop: tokio::sync::oneshot::Sender<()>,
}

impl Cluster {
    /// Starts a server that has one node.
    pub fn start() -> Self {
        let state = Arc::new(State {
            objects: Mutex::default(),
            version: Mutex::new(1),
            changes: broadcast::channel(1024).0,
            drops: Mutex::default(),
            writes_left: Mutex::default(),
            refused: Mutex::default(),
            log: Mutex::default(),
            forbidden: Mutex::default(),
            times: Mutex::default(),
            claims: watch::channel(true).0,
            schemas: Schemas::of("v1.34"),
        });
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let (sender, receiver) = std::sync::mpsc::channel();
        let serving = Arc::clone(&state);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
                sender.send(listener.local_addr().unwrap()).unwrap();
                let accept = async {
                    loop {
                        let (stream, _) = listener.accept().await.unwrap();
                        let state = Arc::clone(&serving);
                        let service = hyper::service::service_fn(move |request| handle(Arc::clone(&state), request));
                        tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service));
                    }
                };
                tokio::select! { () = accept => {}, _ = stopped => {} }
            });
        });
        let cluster = Self { address: receiver.recv().unwrap(), state, _stop: stop };
        cluster.put(&format!("/api/v1/nodes/{NODE}"), json!({ "kind": "Node", "metadata": { "name": NODE, "uid": "node-uid" } }));
        cluster
    }

    /// Returns a client for use in the current runtime.
    pub fn client(&self) -> Client {
        Client::try_from(Config::new(format!("http://{}", self.address).parse().unwrap())).unwrap()
    }

    /// Returns a kubeconfig for programs.
    pub fn kubeconfig(&self) -> String {
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{ "name": "c", "cluster": { "server": format!("http://{}", self.address) } }],
            "users": [{ "name": "u", "user": {} }],
            "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }],
        })
        .to_string()
    }

    /// Creates or replaces an object, as another client would.
    pub fn put(&self, path: &str, object: Value) {
        self.state.store(path, object);
    }

    /// Deletes an object.
    pub fn remove(&self, path: &str) {
        self.state.delete(path);
    }

    /// Returns the objects below a path.
    pub fn objects(&self, path: &str) -> Vec<Value> {
        let prefix = format!("{path}/");
        self.state.objects.lock().unwrap().iter().filter(|(key, _)| key.starts_with(&prefix)).map(|(_, value)| value.clone()).collect()
    }

    /// Returns the node's slices.
    pub fn slices(&self) -> Vec<Value> {
        self.objects(SLICES)
    }

    /// Returns the devices in the slices of the newest generation, by name.
    pub fn devices(&self) -> BTreeMap<String, Value> {
        let slices = self.slices();
        let newest = slices.iter().filter_map(|slice| slice["spec"]["pool"]["generation"].as_i64()).max();
        let current = slices.iter().filter(|slice| slice["spec"]["pool"]["generation"].as_i64() == newest);
        let devices = current.flat_map(|slice| slice["spec"]["devices"].as_array().cloned().unwrap_or_default());
        devices.map(|device| (device["name"].as_str().unwrap().to_owned(), device)).collect()
    }

    /// Drops these fields of devices from now on.
    pub fn drop_fields(&self, fields: &[&'static str]) {
        *self.state.drops.lock().unwrap() = fields.to_vec();
    }

    /// Fails after this number of further writes; `None` for never.
    pub fn fail_after(&self, writes: Option<u32>) {
        *self.state.writes_left.lock().unwrap() = writes;
    }

    /// Answers requests for claims, or leaves them pending.
    pub fn answer_claims(&self, is_answering: bool) {
        self.state.claims.send_replace(is_answering);
    }

    /// Forbids requests for paths with this prefix; `None` for none.
    pub fn forbid(&self, prefix: Option<&'static str>) {
        *self.state.forbidden.lock().unwrap() = prefix;
    }

    /// Returns when each of the requests that [`Cluster::log`] lists has arrived.
    pub fn times(&self) -> Vec<Instant> {
        self.state.times.lock().unwrap().clone()
    }

    /// Returns the problems of refused objects.
    pub fn refused(&self) -> Vec<String> {
        self.state.refused.lock().unwrap().clone()
    }

    /// Returns `METHOD path` of every request so far. The method of a watch is `WATCH`.
    pub fn log(&self) -> Vec<String> {
        self.state.log.lock().unwrap().clone()
    }
}

impl State {
    fn next_version(&self) -> String {
        let mut version = self.version.lock().unwrap();
        *version += 1;
        version.to_string()
    }

    fn store(&self, path: &str, mut object: Value) -> Value {
        object["metadata"]["resourceVersion"] = json!(self.next_version());
        if object["metadata"]["uid"].is_null() {
            object["metadata"]["uid"] = json!(format!("uid-{}", self.next_version()));
        }
        let old = self.objects.lock().unwrap().insert(path.to_owned(), object.clone());
        let _ = self.changes.send((path.to_owned(), json!({ "type": if old.is_some() { "MODIFIED" } else { "ADDED" }, "object": object })));
        object
    }

    fn delete(&self, path: &str) -> bool {
        let Some(object) = self.objects.lock().unwrap().remove(path) else { return false };
        let _ = self.changes.send((path.to_owned(), json!({ "type": "DELETED", "object": object })));
        true
    }

    /// Counts a write. Returns false if it fails.
    fn count_write(&self) -> bool {
        match &mut *self.writes_left.lock().unwrap() {
            None => true,
            Some(0) => false,
            Some(left) => {
                *left -= 1;
                true
            }
        }
    }

    /// Validates an object that is sent, and returns it as it is stored.
    fn accept(&self, mut object: Value) -> Result<Value, String> {
        let kind = object["kind"].as_str().unwrap_or_default().to_owned();
        let mut problems = self.schemas.problems(&kind, &object).unwrap_or_else(|| vec![format!("kind without schema: {kind}")]);
        if kind == "ResourceSlice" {
            problems.extend(super::slice_validation::slice_problems(&object));
            for device in object["spec"]["devices"].as_array_mut().into_iter().flatten() {
                for field in self.drops.lock().unwrap().iter() {
                    device.as_object_mut().unwrap().remove(*field);
                }
                for taint in device["taints"].as_array_mut().into_iter().flatten() {
                    taint["timeAdded"] = json!("2026-01-01T00:00:00Z");
                }
            }
        }
        if problems.is_empty() {
            return Ok(object);
        }
        self.refused.lock().unwrap().push(problems.join("; "));
        Err(problems.join("; "))
    }
}

fn reply(code: StatusCode, value: &Value) -> Reply {
    let body = Full::new(Bytes::from(value.to_string())).boxed();
    Response::builder().status(code).header("content-type", "application/json").body(body).unwrap()
}

fn status(code: StatusCode, reason: &str, message: &str) -> Reply {
    let code_number = code.as_u16();
    reply(
        code,
        &json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": message, "code": code_number }),
    )
}

async fn handle(state: Arc<State>, request: Request<Incoming>) -> Result<Reply, Infallible> {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let query: BTreeMap<String, String> = request
        .uri()
        .query()
        .unwrap_or_default()
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .map(|(key, value)| (key.to_owned(), value.replace("%3D", "=").replace("%2C", ",")))
        .collect();
    let is_watch = query.get("watch").is_some_and(|watch| watch == "true");
    state.times.lock().unwrap().push(Instant::now());
    state.log.lock().unwrap().push(format!("{} {path}", if is_watch { "WATCH" } else { method.as_str() }));
    if state.forbidden.lock().unwrap().is_some_and(|prefix| path.starts_with(prefix)) {
        return Ok(status(StatusCode::FORBIDDEN, "Forbidden", "forbidden"));
    }
    let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    if path.contains("/resourceclaims/") {
        let mut claims = state.claims.subscribe();
        let _ = claims.wait_for(|answered| *answered).await;
    }
    if method != Method::GET && !state.count_write() {
        return Ok(status(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", "the limit of writes is reached"));
    }
    let sent: Value = serde_json::from_slice(&body).unwrap_or_default();
    let not_found = || status(StatusCode::NOT_FOUND, "NotFound", "not found");
    let known = state.objects.lock().unwrap().get(&path).cloned();
    Ok(match method {
        Method::GET if is_watch => watch_changes(&state, &path),
        Method::GET => match known {
            Some(object) => reply(StatusCode::OK, &object),
            None if path.ends_with('s') => list(&state, &path, query.get("fieldSelector").map_or("", String::as_str)),
            None => not_found(),
        },
        Method::POST => create(&state, &path, sent, query.contains_key("dryRun")),
        Method::PUT => match (known, state.accept(sent)) {
            (None, _) => not_found(),
            (_, Err(error)) => status(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", &error),
            (Some(known), Ok(object)) if known["metadata"]["resourceVersion"] != object["metadata"]["resourceVersion"] => {
                status(StatusCode::CONFLICT, "Conflict", "the object has been modified")
            }
            (_, Ok(object)) => reply(StatusCode::OK, &state.store(&path, object)),
        },
        Method::DELETE if state.delete(&path) => {
            reply(StatusCode::OK, &json!({ "kind": "Status", "apiVersion": "v1", "status": "Success" }))
        }
        Method::DELETE => not_found(),
        _ => status(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", "not allowed"),
    })
}

fn create(state: &State, path: &str, sent: Value, is_dry_run: bool) -> Reply {
    let mut object = match state.accept(sent) {
        Ok(object) => object,
        Err(error) => return status(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", &error),
    };
    if object["metadata"]["name"].is_null() {
        let prefix = object["metadata"]["generateName"].as_str().unwrap_or_default().to_owned();
        object["metadata"]["name"] = json!(format!("{prefix}{}", state.next_version()));
    }
    let object_path = format!("{path}/{}", object["metadata"]["name"].as_str().unwrap());
    if state.objects.lock().unwrap().contains_key(&object_path) {
        status(StatusCode::CONFLICT, "AlreadyExists", "already exists")
    } else if is_dry_run {
        reply(StatusCode::CREATED, &object)
    } else {
        reply(StatusCode::CREATED, &state.store(&object_path, object))
    }
}

fn list(state: &State, path: &str, selector: &str) -> Reply {
    let prefix = format!("{path}/");
    let matches = |object: &Value| {
        selector
            .split(',')
            .filter_map(|part| part.split_once('='))
            .all(|(key, value)| object.pointer(&format!("/{}", key.replace('.', "/"))).and_then(Value::as_str) == Some(value))
    };
    let objects = state.objects.lock().unwrap();
    let items: Vec<&Value> =
        objects.iter().filter(|(key, _)| key.starts_with(&prefix)).map(|(_, value)| value).filter(|value| matches(value)).collect();
    let (group, kind) = if path.starts_with("/api/v1") { ("v1", "List") } else { ("resource.k8s.io/v1", "ResourceSliceList") };
    reply(StatusCode::OK, &json!({ "kind": kind, "apiVersion": group, "metadata": { "resourceVersion": "1" }, "items": items }))
}

fn watch_changes(state: &State, path: &str) -> Reply {
    let prefix = format!("{path}/");
    let changes = futures_util::stream::unfold(state.changes.subscribe(), move |mut changes| {
        let prefix = prefix.clone();
        async move {
            loop {
                let (changed, event) = changes.recv().await.ok()?;
                if changed.starts_with(&prefix) {
                    return Some((Ok(Frame::data(Bytes::from(format!("{event}\n")))), changes));
                }
            }
        }
    });
    Response::builder().header("content-type", "application/json").body(BodyExt::boxed(StreamBody::new(changes))).unwrap()
}
