//! HTTPS server of the webhook: answers the API server's AdmissionReviews.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::{TokioIo, TokioTimer};
use k8s_openapi::api::resource::v1::{ResourceClaimTemplate, ResourceSlice};
use kube::api::{ListParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tracing::{debug, error, info};

use crate::cluster::describe;
use crate::names::{DRIVER, MEMORY};
use crate::quantity;
use crate::webhook::pod;
use crate::webhook::tls::Tls;

/// Maximum size of a review in bytes.
const MAX_BODY_BYTES: usize = 8 << 20;
/// Time for a client's TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for a client to send a request's headers.
const HEADER_TIMEOUT: Duration = Duration::from_secs(60);
/// Wait after a failed `accept`, for example for lack of file descriptors.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Admission webhook.
pub struct Webhook {
    /// Client of the cluster in which templates are created.
    pub client: Client,
    /// RuntimeClass for mutated pods that name none.
    pub runtime_class: Option<String>,
}

impl Webhook {
    /// Returns the response to an AdmissionReview.
    ///
    /// # Errors
    /// The value is not an AdmissionReview.
    pub async fn review(&self, review: &Value) -> Result<Value, &'static str> {
        let request =
            review.get("request").filter(|request| request["uid"].is_string()).ok_or("expected an AdmissionReview with a request")?;
        let (namespace, metadata) = (request["namespace"].as_str(), &request["object"]["metadata"]);
        let pod = metadata["name"].as_str().or(metadata["generateName"].as_str());
        let response = match self.decide(request).await {
            Ok(None) => json!({ "uid": request["uid"], "allowed": true }),
            Ok(Some(spec)) => {
                debug!(namespace, pod, "replaced resources by claims");
                let patch = json!([{ "op": "replace", "path": "/spec", "value": spec }]).to_string();
                json!({ "uid": request["uid"], "allowed": true, "patchType": "JSONPatch", "patch": base64(patch.as_bytes()) })
            }
            Err(error) => {
                info!(namespace, pod, error, "refused pod");
                json!({ "uid": request["uid"], "allowed": false, "status": { "code": 422, "reason": "Invalid", "message": error } })
            }
        };
        Ok(json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response }))
    }

    /// Returns the new specification of the request's pod, or `None` to leave it unchanged.
    async fn decide(&self, request: &Value) -> Result<Option<Value>, String> {
        let object = &request["object"];
        if request["operation"] != "CREATE" || object["kind"] != "Pod" {
            return Ok(None);
        }
        let sizes = if pod::needs_gpu_sizes(object) { self.gpu_sizes().await? } else { BTreeSet::new() };
        let Some(mutated) = pod::mutate(object, &sizes, self.runtime_class.as_deref())? else { return Ok(None) };
        if request["dryRun"] != true {
            let namespace = request["namespace"].as_str().ok_or("pod without namespace: expected request.namespace")?;
            let templates: Api<ResourceClaimTemplate> = Api::namespaced(self.client.clone(), namespace);
            for template in &mutated.templates {
                let template = serde_json::from_value(template.clone()).map_err(|error| error.to_string())?;
                match templates.create(&PostParams::default(), &template).await {
                    // The name is a hash of the contents: an existing template is the same.
                    Err(kube::Error::Api(status)) if status.code == 409 => {}
                    other => drop(other.map_err(|error| format!("cannot create ResourceClaimTemplate: {}", describe(&error)))?),
                }
            }
        }
        Ok(Some(mutated.spec))
    }

    /// Returns the memory sizes of the cluster's whole GPUs, in bytes.
    async fn gpu_sizes(&self) -> Result<BTreeSet<u64>, String> {
        let slices: Api<ResourceSlice> = Api::all(self.client.clone());
        let selector = ListParams::default().fields(&format!("spec.driver={DRIVER}"));
        let listed =
            slices.list(&selector).await.map_err(|error| format!("cannot list ResourceSlices for GPU memory: {}", describe(&error)))?;
        let devices = listed.items.into_iter().flat_map(|slice| slice.spec.devices.unwrap_or_default());
        let whole = devices.filter(|device| {
            let kind = device.attributes.as_ref().and_then(|attributes| attributes.get("type")?.string.as_deref());
            kind == Some("gpu")
        });
        Ok(whole.filter_map(|device| quantity::parse(&device.capacity?.get(MEMORY)?.value.0)).collect())
    }

    async fn handle(self: Arc<Self>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        Ok(match (method, path.as_str()) {
            (Method::GET, "/healthz") => reply(StatusCode::OK, "{}".to_owned()),
            (Method::POST, "/mutate") => {
                let body = Limited::new(request.into_body(), MAX_BODY_BYTES).collect().await.ok().map(|body| body.to_bytes());
                let review: Option<Value> = body.and_then(|body| serde_json::from_slice(&body).ok());
                match review {
                    Some(review) => match self.review(&review).await {
                        Ok(response) => reply(StatusCode::OK, response.to_string()),
                        Err(error) => reply(StatusCode::BAD_REQUEST, json!({ "error": error }).to_string()),
                    },
                    None => reply(StatusCode::BAD_REQUEST, json!({ "error": "expected JSON" }).to_string()),
                }
            }
            _ => reply(StatusCode::NOT_FOUND, "{}".to_owned()),
        })
    }
}

fn reply(status: StatusCode, json: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(json)));
    *response.status_mut() = status;
    response.headers_mut().insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    response
}

/// Serves connections until `stop` completes.
pub async fn serve(webhook: Webhook, listener: TcpListener, mut tls: Tls, stop: impl Future<Output = ()>) {
    let webhook = Arc::new(webhook);
    let accept = async {
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                tokio::time::sleep(ACCEPT_RETRY_INTERVAL).await;
                continue;
            };
            match tls.acceptor() {
                Ok(acceptor) => drop(tokio::spawn(serve_connection(Arc::clone(&webhook), acceptor, stream))),
                Err(error) => error!(error, "cannot load the certificate"),
            }
        }
    };
    tokio::select! { () = accept => {}, () = stop => {} }
}

async fn serve_connection(webhook: Arc<Webhook>, acceptor: TlsAcceptor, stream: TcpStream) {
    let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await else { return };
    let service = hyper::service::service_fn(move |request| Arc::clone(&webhook).handle(request));
    let mut server = hyper::server::conn::http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    let _ = server.serve_connection(TokioIo::new(stream), service).await;
}

/// Encodes a JSON patch for an AdmissionReview.
fn base64(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}
