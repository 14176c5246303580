//! gRPC services for the kubelet: plugin registration, DRA and device health.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::{Future, ready};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::Stream;
use http::{Request, Response};
use tokio::sync::{Notify, watch};
use tonic::body::Body;
use tonic::server::{Grpc, ServerStreamingService, UnaryService};
use tonic::{Code, Status};
use tonic_prost::ProstCodec;
use tower_service::Service;
use tracing::{debug, error, info, warn};

use crate::driver::Driver;
use crate::health;
use crate::names::DRIVER;
use crate::proto::{
    ClaimsRequest, DeviceHealth, Empty, HealthResponse, PluginInfo, PrepareResponse, PreparedClaim, RegistrationStatus, UnprepareResponse,
    UnpreparedClaim,
};
use crate::status::{self, ClaimRequest};

/// Services by the names under which the kubelet knows them: the versions of DRA that it chooses from, newest first, and device health.
pub const SERVICES: [&str; 3] = ["v1.DRAPlugin", "v1beta1.DRAPlugin", "v1alpha1.DRAResourceHealth"];

/// Server of the services on both sockets.
#[derive(Clone)]
pub struct Plugin {
    driver: Arc<Driver>,
    /// Path of the DRA services' socket.
    endpoint: PathBuf,
    /// Notified on registration, as the kubelet may have deleted the slices before.
    registered: Arc<Notify>,
    /// Health reports of the devices.
    health: watch::Receiver<Vec<DeviceHealth>>,
    /// What the metrics say.
    status: Arc<status::Status>,
}

impl Plugin {
    /// Returns a server that prepares claims through `driver`, reports `health` and names `endpoint` as the DRA services' socket.
    #[must_use]
    pub fn new(
        driver: Arc<Driver>,
        endpoint: PathBuf,
        registered: Arc<Notify>,
        health: watch::Receiver<Vec<DeviceHealth>>,
        status: Arc<status::Status>,
    ) -> Self {
        Self { driver, endpoint, registered, health, status }
    }

    async fn handle(self, request: Request<Body>) -> Response<Body> {
        let path = request.uri().path().to_owned();
        match path.as_str() {
            "/pluginregistration.Registration/GetInfo" => unary(request, |_: Empty| ready(Ok(self.info()))).await,
            "/pluginregistration.Registration/NotifyRegistrationStatus" => {
                unary(request, |status| {
                    self.handle_registration_status(&status);
                    ready(Ok(Empty {}))
                })
                .await
            }
            "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources"
            | "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodePrepareResources" => unary(request, |claims| self.prepare(claims)).await,
            "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources"
            | "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodeUnprepareResources" => {
                unary(request, |claims| self.unprepare(claims)).await
            }
            "/v1alpha1.DRAResourceHealth/NodeWatchResources" => {
                Grpc::new(ProstCodec::<HealthResponse, Empty>::default()).server_streaming(HealthService(self.health), request).await
            }
            _ => Status::new(Code::Unimplemented, "").into_http(),
        }
    }

    fn info(&self) -> PluginInfo {
        PluginInfo {
            r#type: "DRAPlugin".to_owned(),
            name: DRIVER.to_owned(),
            endpoint: self.endpoint.display().to_string(),
            supported_versions: SERVICES.map(str::to_owned).into(),
        }
    }

    fn handle_registration_status(&self, status: &RegistrationStatus) {
        if status.plugin_registered {
            info!("registered with the kubelet");
        } else {
            error!(error = status.error, "registration refused by the kubelet");
        }
        self.registered.notify_one();
    }

    async fn prepare(&self, request: ClaimsRequest) -> Result<PrepareResponse, Status> {
        let mut claims = HashMap::new();
        for claim in request.claims {
            let name = format!("{}/{}", claim.namespace, claim.name);
            let (devices, error) = match self.driver.prepare(&claim).await {
                Ok(devices) => {
                    for device in &devices {
                        debug!(claim = name, uid = claim.uid, device = device.device_name, "prepared claim");
                    }
                    (devices, String::new())
                }
                Err(error) => {
                    warn!(claim = name, uid = claim.uid, error, "claim not prepared");
                    self.status.failed(ClaimRequest::Prepare);
                    (Vec::new(), error)
                }
            };
            claims.insert(claim.uid, PreparedClaim { devices, error });
        }
        self.status.claims(self.driver.claim_count().await);
        Ok(PrepareResponse { claims })
    }

    async fn unprepare(&self, request: ClaimsRequest) -> Result<UnprepareResponse, Status> {
        let mut claims = HashMap::new();
        for claim in request.claims {
            let name = format!("{}/{}", claim.namespace, claim.name);
            let error = self.driver.unprepare(&claim.uid).await.err().unwrap_or_default();
            if error.is_empty() {
                debug!(claim = name, uid = claim.uid, "unprepared claim");
            } else {
                warn!(claim = name, uid = claim.uid, error, "claim not unprepared");
                self.status.failed(ClaimRequest::Unprepare);
            }
            claims.insert(claim.uid, UnpreparedClaim { error });
        }
        self.status.claims(self.driver.claim_count().await);
        Ok(UnprepareResponse { claims })
    }
}

impl Service<Request<Body>> for Plugin {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let this = self.clone();
        Box::pin(async move { Ok(this.handle(request).await) })
    }
}

/// Serves one request that has one response.
async fn unary<Q, A, F>(request: Request<Body>, handler: impl FnOnce(Q) -> F + Send) -> Response<Body>
where
    Q: prost::Message + Default + Send + Sync + 'static,
    A: prost::Message + Default + Send + Sync + 'static,
    F: Future<Output = Result<A, Status>> + Send,
{
    Grpc::new(ProstCodec::<A, Q>::default()).unary(UnaryHandler(Some(handler)), request).await
}

/// Streams health reports.
struct HealthService(watch::Receiver<Vec<DeviceHealth>>);

impl ServerStreamingService<Empty> for HealthService {
    type Response = HealthResponse;
    type ResponseStream = Pin<Box<dyn Stream<Item = Result<HealthResponse, Status>> + Send>>;
    type Future = std::future::Ready<Result<tonic::Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, _: tonic::Request<Empty>) -> Self::Future {
        let updates: Self::ResponseStream = Box::pin(health::updates(self.0.clone()));
        ready(Ok(tonic::Response::new(updates)))
    }
}

/// Adapter from a function that is called once to tonic's service.
struct UnaryHandler<T>(Option<T>);

impl<Q, A, F, T> UnaryService<Q> for UnaryHandler<T>
where
    T: FnOnce(Q) -> F,
    F: Future<Output = Result<A, Status>> + Send,
{
    type Response = A;
    type Future = UnaryResponse<F>;

    fn call(&mut self, request: tonic::Request<Q>) -> Self::Future {
        // tonic calls the service once for each request.
        UnaryResponse(self.0.take().map(|handler| Box::pin(handler(request.into_inner()))))
    }
}

/// Future of the handler's response.
struct UnaryResponse<F>(Option<Pin<Box<F>>>);

impl<A, F: Future<Output = Result<A, Status>>> Future for UnaryResponse<F> {
    type Output = Result<tonic::Response<A>, Status>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Some(response) => response.as_mut().poll(context).map_ok(tonic::Response::new),
            None => Poll::Ready(Err(Status::internal("handler called twice"))),
        }
    }
}
