BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0003');
CREATE TABLE attempts (
	id TEXT NOT NULL, 
	job TEXT NOT NULL, 
	number INTEGER NOT NULL, 
	fencing BIGINT NOT NULL, 
	executor TEXT NOT NULL, 
	placement JSON NOT NULL, 
	resources JSON NOT NULL, 
	state TEXT NOT NULL, 
	handle JSON NOT NULL, 
	created DOUBLE NOT NULL, 
	started DOUBLE, 
	ended DOUBLE, 
	exit_code INTEGER, 
	reason TEXT, 
	message TEXT NOT NULL, 
	ingested BIGINT NOT NULL, 
	"offset" BIGINT NOT NULL, skipped_lines BIGINT DEFAULT '0' NOT NULL, 
	CONSTRAINT pk_attempts PRIMARY KEY (id), 
	CONSTRAINT fk_attempts_job_jobs FOREIGN KEY(job) REFERENCES jobs (id), 
	CONSTRAINT uq_attempts_job_number UNIQUE (job, number)
);
INSERT INTO "attempts" VALUES('attempt-01m85sam2x8bctvmwgjqe5trrf','job-01m85sam1wkgnww074z67741yw',1,1,'local','[{"host": "here", "gpus": [0]}]','{"gpus": 0, "gpu_memory": 0, "gpu_kind": null, "cpus": 1, "memory": 0, "hosts": 1}','ended','{}',1.79549066454461026193e+09,NULL,1.79549066465965485566e+09,NULL,NULL,'',0,0,0);
CREATE TABLE ended_sessions (
	id TEXT NOT NULL, 
	expires DOUBLE NOT NULL, 
	CONSTRAINT pk_ended_sessions PRIMARY KEY (id)
);
INSERT INTO "ended_sessions" VALUES('nonce',4000000000.0);
CREATE TABLE events (
	job TEXT NOT NULL, 
	id BIGINT NOT NULL, 
	time DOUBLE NOT NULL, 
	event TEXT NOT NULL, 
	stage TEXT, 
	step BIGINT, 
	attempt TEXT, 
	fields JSON NOT NULL, 
	CONSTRAINT pk_events PRIMARY KEY (job, id), 
	CONSTRAINT fk_events_job_jobs FOREIGN KEY(job) REFERENCES jobs (id)
);
INSERT INTO "events" VALUES('job-01m85sam1wkgnww074z67741yw',1,1.79549066451155471804e+09,'state',NULL,NULL,NULL,'{"state": "queued"}');
INSERT INTO "events" VALUES('job-01m85sam1wkgnww074z67741yw',2,1.79549066455930447575e+09,'state',NULL,NULL,'attempt-01m85sam2x8bctvmwgjqe5trrf','{"state": "starting", "from": "queued"}');
INSERT INTO "events" VALUES('job-01m85sam1wkgnww074z67741yw',3,1.79549066467381739616e+09,'state',NULL,NULL,'attempt-01m85sam2x8bctvmwgjqe5trrf','{"state": "succeeded", "from": "starting"}');
CREATE TABLE files (
	id TEXT NOT NULL, 
	project TEXT NOT NULL, 
	filename TEXT NOT NULL, 
	purpose TEXT NOT NULL, 
	state TEXT NOT NULL, 
	bytes BIGINT, 
	sha256 TEXT, 
	"offset" BIGINT NOT NULL, 
	created_by TEXT NOT NULL, 
	created DOUBLE NOT NULL, 
	completed DOUBLE, 
	openai JSON NOT NULL, reserved BIGINT DEFAULT '0' NOT NULL, 
	CONSTRAINT pk_files PRIMARY KEY (id), 
	CONSTRAINT fk_files_project_projects FOREIGN KEY(project) REFERENCES projects (name)
);
INSERT INTO "files" VALUES('file-01m85sam198cg1m9a1xvhvm6a8','p','train.jsonl','fine-tune','uploading',NULL,NULL,0,'',1.79549066448967695238e+09,NULL,'{}',0);
CREATE TABLE gpu_slots (
	host TEXT NOT NULL, 
	number INTEGER NOT NULL, 
	kind TEXT NOT NULL, 
	memory BIGINT NOT NULL, 
	uuid TEXT NOT NULL, 
	present BOOLEAN NOT NULL, 
	attempt TEXT, 
	CONSTRAINT pk_gpu_slots PRIMARY KEY (host, number), 
	CONSTRAINT fk_gpu_slots_host_hosts FOREIGN KEY(host) REFERENCES hosts (name)
);
INSERT INTO "gpu_slots" VALUES('here',0,'H200',137438953472,'',1,NULL);
CREATE TABLE hosts (
	name TEXT NOT NULL, 
	executor TEXT NOT NULL, 
	cpus INTEGER NOT NULL, 
	memory BIGINT NOT NULL, 
	state TEXT NOT NULL, 
	seen DOUBLE NOT NULL, 
	info JSON NOT NULL, 
	CONSTRAINT pk_hosts PRIMARY KEY (name)
);
INSERT INTO "hosts" VALUES('here','local',1,0,'up',1.79549066443726325036e+09,'{}');
CREATE TABLE jobs (
	id TEXT NOT NULL, 
	project TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	name TEXT NOT NULL, 
	recipe TEXT NOT NULL, 
	overrides JSON NOT NULL, 
	resources JSON NOT NULL, 
	depends_on JSON NOT NULL, 
	secrets JSON NOT NULL, 
	openai JSON NOT NULL, 
	digest TEXT NOT NULL, 
	idempotency_key TEXT, 
	submitted_by TEXT NOT NULL, 
	asked_priority INTEGER NOT NULL, 
	deadline DOUBLE, 
	expected_seconds DOUBLE, 
	max_retries INTEGER NOT NULL, 
	state TEXT NOT NULL, 
	reason TEXT, 
	message TEXT NOT NULL, 
	priority INTEGER NOT NULL, 
	created DOUBLE NOT NULL, 
	updated DOUBLE NOT NULL, 
	started DOUBLE, 
	finished DOUBLE, 
	not_before DOUBLE NOT NULL, 
	retries INTEGER NOT NULL, 
	preemptions INTEGER NOT NULL, 
	attempt TEXT, 
	attempts INTEGER NOT NULL, 
	last_event BIGINT NOT NULL, 
	progress JSON NOT NULL, max_seconds DOUBLE, ttl_seconds_after_finished DOUBLE, attempts_before_retry INTEGER DEFAULT '0' NOT NULL, 
	CONSTRAINT pk_jobs PRIMARY KEY (id), 
	CONSTRAINT fk_jobs_project_projects FOREIGN KEY(project) REFERENCES projects (name), 
	CONSTRAINT uq_jobs_project_idempotency_key UNIQUE (project, idempotency_key)
);
INSERT INTO "jobs" VALUES('job-01m85sam1wkgnww074z67741yw','p','api','','name: é
','[]','{"gpus": 0, "gpu_memory": 0, "gpu_kind": null, "cpus": 1, "memory": 0, "hosts": 1}','[]','[]','{}','30c49a53ab50c197b11a04880199962e0922898554d298342aa9e5e34e024135','k','',0,NULL,NULL,3,'succeeded',NULL,'',0,1.79549066451155471804e+09,1.79549066467381739616e+09,NULL,1.79549066467381739616e+09,0.0,0,0,'attempt-01m85sam2x8bctvmwgjqe5trrf',1,3,'{}',NULL,NULL,0);
CREATE TABLE leases (
	name TEXT NOT NULL, 
	holder TEXT NOT NULL, 
	fencing BIGINT NOT NULL, 
	expires DOUBLE NOT NULL, 
	attempt TEXT, 
	CONSTRAINT pk_leases PRIMARY KEY (name)
);
INSERT INTO "leases" VALUES('job-01m85sam1wkgnww074z67741yw','',1,0.0,NULL);
CREATE TABLE "models" (
	id TEXT NOT NULL, 
	project TEXT NOT NULL, 
	name TEXT NOT NULL, 
	fingerprint TEXT NOT NULL, 
	job TEXT NOT NULL, 
	path TEXT NOT NULL, 
	base TEXT NOT NULL, 
	parameters BIGINT, 
	scores JSON NOT NULL, 
	openai JSON NOT NULL, 
	created DOUBLE NOT NULL, 
	CONSTRAINT pk_models PRIMARY KEY (id), 
	CONSTRAINT fk_models_project_projects FOREIGN KEY(project) REFERENCES projects (name), 
	CONSTRAINT uq_models_project_name_fingerprint UNIQUE (project, name, fingerprint)
);
INSERT INTO "models" VALUES('model-01m85sam5zqfec6yjfqa6fe5gx','p','m','f','job-01m85sam1wkgnww074z67741yw','/m','',NULL,'{}','{}',1.79549066463983607289e+09);
CREATE TABLE projects (
	name TEXT NOT NULL, 
	weight DOUBLE NOT NULL, 
	max_gpus INTEGER, 
	max_running INTEGER, 
	max_queued INTEGER, 
	settings JSON NOT NULL, 
	created DOUBLE NOT NULL, 
	CONSTRAINT pk_projects PRIMARY KEY (name)
);
INSERT INTO "projects" VALUES('p',1.0,NULL,NULL,NULL,'{}',1.79549066446260619164e+09);
CREATE TABLE scores (
	job TEXT NOT NULL, 
	stage TEXT NOT NULL, 
	benchmark TEXT NOT NULL, 
	metric TEXT NOT NULL, 
	project TEXT NOT NULL, 
	value DOUBLE NOT NULL, 
	created DOUBLE NOT NULL, 
	CONSTRAINT pk_scores PRIMARY KEY (job, stage, benchmark, metric), 
	CONSTRAINT fk_scores_job_jobs FOREIGN KEY(job) REFERENCES jobs (id), 
	CONSTRAINT fk_scores_project_projects FOREIGN KEY(project) REFERENCES projects (name)
);
INSERT INTO "scores" VALUES('job-01m85sam1wkgnww074z67741yw','evaluate','glue/mrpc','f1','p',0.5,1.79549066461263370515e+09);
CREATE TABLE stage_results (
	job TEXT NOT NULL, 
	stage TEXT NOT NULL, 
	attempt TEXT NOT NULL, 
	fingerprint TEXT NOT NULL, 
	seconds DOUBLE NOT NULL, 
	reused BOOLEAN NOT NULL, 
	metrics JSON NOT NULL, 
	finished DOUBLE NOT NULL, 
	CONSTRAINT pk_stage_results PRIMARY KEY (job, stage), 
	CONSTRAINT fk_stage_results_job_jobs FOREIGN KEY(job) REFERENCES jobs (id)
);
INSERT INTO "stage_results" VALUES('job-01m85sam1wkgnww074z67741yw','evaluate','attempt-01m85sam2x8bctvmwgjqe5trrf','',0.0,0,'{"glue/mrpc": {"f1": 0.5}}',1.79549066460995650294e+09);
CREATE TABLE tokens (
	id TEXT NOT NULL, 
	prefix TEXT NOT NULL, 
	sha256 TEXT NOT NULL, 
	project TEXT NOT NULL, 
	role TEXT NOT NULL, 
	name TEXT NOT NULL, 
	created DOUBLE NOT NULL, 
	expires DOUBLE, 
	revoked DOUBLE, 
	last_used DOUBLE, 
	CONSTRAINT pk_tokens PRIMARY KEY (id), 
	CONSTRAINT fk_tokens_project_projects FOREIGN KEY(project) REFERENCES projects (name), 
	CONSTRAINT uq_tokens_prefix UNIQUE (prefix)
);
INSERT INTO "tokens" VALUES('token-01m85sam0d5r957ykkf0drbpqm','abc','0000000000000000000000000000000000000000000000000000000000000000','p','admin','',1.79549066446122622484e+09,NULL,NULL,NULL);
INSERT INTO "tokens" VALUES('token-01m85sam810kwe4sd1t4z3q9e9','released0000','d9ef4334ec1e720d52182936117c00ed352c044d0f8d46cd845298cbc1869b72','p','admin','',1.79549066470520114896e+09,NULL,NULL,NULL);
CREATE INDEX ix_jobs_project_id ON jobs (project, id);
CREATE INDEX ix_jobs_project_state_id ON jobs (project, state, id);
CREATE INDEX ix_jobs_state_id ON jobs (state, id);
CREATE INDEX ix_jobs_updated ON jobs (updated);
CREATE INDEX ix_attempts_state ON attempts (state);
CREATE INDEX ix_leases_holder ON leases (holder);
CREATE INDEX ix_files_project_id ON files (project, id);
CREATE INDEX ix_files_project_sha256 ON files (project, sha256);
CREATE INDEX ix_scores_project_benchmark_metric_value ON scores (project, benchmark, metric, value);
CREATE INDEX ix_jobs_finished ON jobs (finished);
CREATE INDEX ix_models_project_id ON models (project, id);
COMMIT;
