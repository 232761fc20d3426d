BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0007');
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
INSERT INTO "attempts" VALUES('attempt-01m8bbs3d95erfsrnx81ssq4eh','job-01m8bbs3cvaks3v0842x1ptq7s',1,1,'local','[{"host": "here", "gpus": [0]}]','{"gpus": 0, "gpu_memory": 0, "gpu_kind": null, "cpus": 1, "memory": 0, "hosts": 1}','ended','{}',1.79567778551635551451e+09,NULL,1.7956777856344957352e+09,NULL,NULL,'',0,0,0);
CREATE TABLE audit (
	id TEXT NOT NULL, 
	time DOUBLE NOT NULL, 
	action TEXT NOT NULL, 
	actor TEXT NOT NULL, 
	role TEXT NOT NULL, 
	actor_project TEXT NOT NULL, 
	address TEXT NOT NULL, 
	request TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	thing TEXT NOT NULL, 
	project TEXT, 
	details JSON NOT NULL, 
	CONSTRAINT pk_audit PRIMARY KEY (id)
);
INSERT INTO "audit" VALUES('audit-01m8bbs3c540310z3wadchz4g9',1.79567778547747349741e+09,'token.create','finery','','','','','token','token-01m8bbs3bwbydnxjt9y3gd0s9k','p','{"role": "admin"}');
INSERT INTO "audit" VALUES('audit-01m8bbs3cdkqvqn8dee4rbbqn7',1.79567778548510432242e+09,'file.create','finery','','','','','file','file-01m8bbs3cbg50d1t57wcw7j9t7','p','{"filename": "train.jsonl", "purpose": "fine-tune"}');
INSERT INTO "audit" VALUES('audit-01m8bbs3d95erfsrnx81ssq4eg',1.79567778551302576067e+09,'job.submit','finery','','','','','job','job-01m8bbs3cvaks3v0842x1ptq7s','p','{"name": "", "via": "api"}');
INSERT INTO "audit" VALUES('audit-01m8bbs3fhjbn1zx086qyngmkp',1.79567778558601069457e+09,'model.publish','finery','','','','','model','model-01m8bbs3fhjbn1zx086qyngmkn','p','{"name": "m", "version": 1, "fingerprint": "f", "job": "job-01m8bbs3cvaks3v0842x1ptq7s"}');
INSERT INTO "audit" VALUES('audit-01m8bbs3fmd3swpqk96sb1v0he',1.79567778558874368666e+09,'model.publish','finery','','','','','model','model-01m8bbs3fmd3swpqk96sb1v0hd','p','{"name": "m", "version": 2, "fingerprint": "g", "job": "job-01m8bbs3cvaks3v0842x1ptq7s"}');
INSERT INTO "audit" VALUES('audit-01m8bbs3gb8t9fq390q9sfd028',1.79567778561152338982e+09,'model.alias','finery','','','','','model','model-01m8bbs3fhjbn1zx086qyngmkn','p','{"name": "m", "version": 1, "alias": "production"}');
INSERT INTO "audit" VALUES('audit-01m8bbs3jyp36b3gdcvq3029kp',1.795677785694601059e+09,'permission.create','finery','','','','','permission','cp-01m8bbs3jnfyeerdbyef63yv2g','p','{"model": "m", "to": "p"}');
INSERT INTO "audit" VALUES('audit-01m8bbs3k4qvyqnfy8gtx0mqm1',1.79567778570088315004e+09,'eval.create','finery','','','','','eval','eval-01m8bbs3k3g3p89mysst5kp9h5','p','{"name": "e"}');
INSERT INTO "audit" VALUES('audit-01m8bbs3m7rpfbrk6ts5g5pzmn',1.79567778573513746266e+09,'eval.run','finery','','','','','evalrun','evalrun-01m8bbs3kss36m59gs1dhmmq1r','p','{"eval": "eval-01m8bbs3k3g3p89mysst5kp9h5", "model": "m"}');
INSERT INTO "audit" VALUES('audit-01m8bbs3mj2k63e1s501d4pxst',1.79567778574629497529e+09,'token.create','finery','','','','','token','token-01m8bbs3mh8g55q15npr5j41rz','p','{"role": "admin"}');
CREATE TABLE disk_usage (
	project TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	thing TEXT NOT NULL, 
	bytes BIGINT NOT NULL, 
	measured DOUBLE NOT NULL, 
	CONSTRAINT pk_disk_usage PRIMARY KEY (project, kind, thing), 
	CONSTRAINT fk_disk_usage_project_projects FOREIGN KEY(project) REFERENCES projects (name)
);
INSERT INTO "disk_usage" VALUES('p','jobs','job-01m8bbs3cvaks3v0842x1ptq7s',1099511627776,1.79567778574310421947e+09);
CREATE TABLE ended_sessions (
	id TEXT NOT NULL, 
	expires DOUBLE NOT NULL, 
	CONSTRAINT pk_ended_sessions PRIMARY KEY (id)
);
INSERT INTO "ended_sessions" VALUES('nonce',4000000000.0);
CREATE TABLE eval_items (
	run TEXT NOT NULL, 
	number INTEGER NOT NULL, 
	state TEXT NOT NULL, 
	item JSON NOT NULL, 
	given JSON NOT NULL, 
	sample JSON NOT NULL, 
	results JSON NOT NULL, 
	done DOUBLE, 
	CONSTRAINT pk_eval_items PRIMARY KEY (run, number), 
	CONSTRAINT fk_eval_items_run_eval_runs FOREIGN KEY(run) REFERENCES eval_runs (id)
);
INSERT INTO "eval_items" VALUES('evalrun-01m8bbs3kss36m59gs1dhmmq1r',0,'waiting','{"a": 1}','{}','{}','[]',NULL);
CREATE TABLE eval_runs (
	id TEXT NOT NULL, 
	eval TEXT NOT NULL, 
	project TEXT NOT NULL, 
	name TEXT NOT NULL, 
	state TEXT NOT NULL, 
	data_source JSON NOT NULL, 
	metadata JSON NOT NULL, 
	model TEXT NOT NULL, 
	summary JSON NOT NULL, 
	error JSON NOT NULL, 
	items INTEGER NOT NULL, 
	created_by TEXT NOT NULL, 
	role TEXT NOT NULL, 
	created DOUBLE NOT NULL, 
	started DOUBLE, 
	finished DOUBLE, 
	CONSTRAINT pk_eval_runs PRIMARY KEY (id), 
	CONSTRAINT fk_eval_runs_eval_evals FOREIGN KEY(eval) REFERENCES evals (id), 
	CONSTRAINT fk_eval_runs_project_projects FOREIGN KEY(project) REFERENCES projects (name)
);
INSERT INTO "eval_runs" VALUES('evalrun-01m8bbs3kss36m59gs1dhmmq1r','eval-01m8bbs3k3g3p89mysst5kp9h5','p','r','queued','{}','{}','m','{"counts": {"pass": 0, "fail": 0, "error": 0}, "criteria": {}, "usage": {}}','{}',1,'finery','submitter',1.79567778572135853774e+09,NULL,NULL);
CREATE TABLE evals (
	id TEXT NOT NULL, 
	project TEXT NOT NULL, 
	name TEXT NOT NULL, 
	data_source_config JSON NOT NULL, 
	testing_criteria JSON NOT NULL, 
	metadata JSON NOT NULL, 
	created_by TEXT NOT NULL, 
	created DOUBLE NOT NULL, 
	updated DOUBLE NOT NULL, 
	CONSTRAINT pk_evals PRIMARY KEY (id), 
	CONSTRAINT fk_evals_project_projects FOREIGN KEY(project) REFERENCES projects (name)
);
INSERT INTO "evals" VALUES('eval-01m8bbs3k3g3p89mysst5kp9h5','p','e','{}','[]','{}','finery',1.79567778569939303398e+09,1.79567778569939303398e+09);
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
INSERT INTO "events" VALUES('job-01m8bbs3cvaks3v0842x1ptq7s',1,1.79567778551073837277e+09,'state',NULL,NULL,NULL,'{"state": "queued"}');
INSERT INTO "events" VALUES('job-01m8bbs3cvaks3v0842x1ptq7s',2,1.79567778553021264076e+09,'state',NULL,NULL,'attempt-01m8bbs3d95erfsrnx81ssq4eh','{"state": "starting", "from": "queued"}');
INSERT INTO "events" VALUES('job-01m8bbs3cvaks3v0842x1ptq7s',3,1.79567778564340615275e+09,'state',NULL,NULL,'attempt-01m8bbs3d95erfsrnx81ssq4eh','{"state": "succeeded", "from": "starting"}');
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
INSERT INTO "files" VALUES('file-01m8bbs3cbg50d1t57wcw7j9t7','p','train.jsonl','fine-tune','uploading',NULL,NULL,0,'',1.79567778548316597936e+09,NULL,'{}',0);
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
INSERT INTO "hosts" VALUES('here','local',1,0,'up',1.79567778544500470166e+09,'{}');
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
	progress JSON NOT NULL, max_seconds DOUBLE, ttl_seconds_after_finished DOUBLE, attempts_before_retry INTEGER DEFAULT '0' NOT NULL, models JSON DEFAULT '{}' NOT NULL, 
	CONSTRAINT pk_jobs PRIMARY KEY (id), 
	CONSTRAINT fk_jobs_project_projects FOREIGN KEY(project) REFERENCES projects (name), 
	CONSTRAINT uq_jobs_project_idempotency_key UNIQUE (project, idempotency_key)
);
INSERT INTO "jobs" VALUES('job-01m8bbs3cvaks3v0842x1ptq7s','p','api','','name: é
','[]','{"gpus": 0, "gpu_memory": 0, "gpu_kind": null, "cpus": 1, "memory": 0, "hosts": 1}','[]','[]','{}','30c49a53ab50c197b11a04880199962e0922898554d298342aa9e5e34e024135','k','',0,NULL,NULL,3,'succeeded',NULL,'',0,1.79567778551073837277e+09,1.79567778564340615275e+09,NULL,1.79567778564340615275e+09,0.0,0,0,'attempt-01m8bbs3d95erfsrnx81ssq4eh',1,3,'{}',NULL,NULL,0,'{}');
CREATE TABLE leases (
	name TEXT NOT NULL, 
	holder TEXT NOT NULL, 
	fencing BIGINT NOT NULL, 
	expires DOUBLE NOT NULL, 
	attempt TEXT, 
	CONSTRAINT pk_leases PRIMARY KEY (name)
);
INSERT INTO "leases" VALUES('job-01m8bbs3cvaks3v0842x1ptq7s','',1,0.0,NULL);
CREATE TABLE model_aliases (
	project TEXT NOT NULL, 
	name TEXT NOT NULL, 
	alias TEXT NOT NULL, 
	model TEXT NOT NULL, 
	set_by TEXT NOT NULL, 
	"set" DOUBLE NOT NULL, 
	CONSTRAINT pk_model_aliases PRIMARY KEY (project, name, alias), 
	CONSTRAINT fk_model_aliases_project_projects FOREIGN KEY(project) REFERENCES projects (name), 
	CONSTRAINT fk_model_aliases_model_models FOREIGN KEY(model) REFERENCES models (id)
);
INSERT INTO "model_aliases" VALUES('p','m','production','model-01m8bbs3fhjbn1zx086qyngmkn','finery',1.79567778559451436994e+09);
CREATE TABLE model_comparisons (
	model TEXT NOT NULL, 
	against TEXT NOT NULL, 
	document JSON NOT NULL, 
	created DOUBLE NOT NULL, 
	CONSTRAINT pk_model_comparisons PRIMARY KEY (model, against), 
	CONSTRAINT fk_model_comparisons_model_models FOREIGN KEY(model) REFERENCES models (id), 
	CONSTRAINT fk_model_comparisons_against_models FOREIGN KEY(against) REFERENCES models (id)
);
INSERT INTO "model_comparisons" VALUES('model-01m8bbs3fmd3swpqk96sb1v0hd','model-01m8bbs3fhjbn1zx086qyngmkn','{"benchmarks": []}',1.7956777856256394386e+09);
CREATE TABLE model_names (
	project TEXT NOT NULL, 
	name TEXT NOT NULL, 
	last_version INTEGER NOT NULL, 
	benchmark TEXT NOT NULL, 
	metric TEXT NOT NULL, 
	CONSTRAINT pk_model_names PRIMARY KEY (project, name), 
	CONSTRAINT fk_model_names_project_projects FOREIGN KEY(project) REFERENCES projects (name)
);
INSERT INTO "model_names" VALUES('p','m',2,'','');
CREATE TABLE model_permissions (
	id TEXT NOT NULL, 
	owner TEXT NOT NULL, 
	model TEXT NOT NULL, 
	project TEXT NOT NULL, 
	created_by TEXT NOT NULL, 
	created DOUBLE NOT NULL, 
	CONSTRAINT pk_model_permissions PRIMARY KEY (id), 
	CONSTRAINT fk_model_permissions_owner_projects FOREIGN KEY(owner) REFERENCES projects (name), 
	CONSTRAINT fk_model_permissions_project_projects FOREIGN KEY(project) REFERENCES projects (name), 
	CONSTRAINT uq_model_permissions_owner_model_project UNIQUE (owner, model, project)
);
INSERT INTO "model_permissions" VALUES('cp-01m8bbs3jnfyeerdbyef63yv2g','p','m','p','finery',1.79567778568515825279e+09);
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
	version INTEGER DEFAULT '1' NOT NULL, 
	deleted DOUBLE, 
	CONSTRAINT pk_models PRIMARY KEY (id), 
	CONSTRAINT fk_models_project_projects FOREIGN KEY(project) REFERENCES projects (name), 
	CONSTRAINT uq_models_project_name_fingerprint UNIQUE (project, name, fingerprint), 
	CONSTRAINT uq_models_project_name_version UNIQUE (project, name, version)
);
INSERT INTO "models" VALUES('model-01m8bbs3fhjbn1zx086qyngmkn','p','m','f','job-01m8bbs3cvaks3v0842x1ptq7s','/m','',NULL,'{}','{}',1.79567778558520531654e+09,1,NULL);
INSERT INTO "models" VALUES('model-01m8bbs3fmd3swpqk96sb1v0hd','p','m','g','job-01m8bbs3cvaks3v0842x1ptq7s','/n','',NULL,'{}','{}',1.79567778558839249609e+09,2,NULL);
CREATE TABLE projects (
	name TEXT NOT NULL, 
	weight DOUBLE NOT NULL, 
	max_gpus INTEGER, 
	max_running INTEGER, 
	max_queued INTEGER, 
	settings JSON NOT NULL, 
	created DOUBLE NOT NULL, max_bytes BIGINT, 
	CONSTRAINT pk_projects PRIMARY KEY (name)
);
INSERT INTO "projects" VALUES('p',1.0,NULL,NULL,NULL,'{}',1.79567778546946763993e+09,NULL);
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
INSERT INTO "scores" VALUES('job-01m8bbs3cvaks3v0842x1ptq7s','evaluate','glue/mrpc','f1','p',0.5,1.79567778556675148012e+09);
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
INSERT INTO "stage_results" VALUES('job-01m8bbs3cvaks3v0842x1ptq7s','evaluate','attempt-01m8bbs3d95erfsrnx81ssq4eh','',0.0,0,'{"glue/mrpc": {"f1": 0.5}}',1.79567778555363345141e+09);
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
INSERT INTO "tokens" VALUES('token-01m8bbs3bwbydnxjt9y3gd0s9k','abc','0000000000000000000000000000000000000000000000000000000000000000','p','admin','',1.79567778546843838686e+09,NULL,NULL,NULL);
INSERT INTO "tokens" VALUES('token-01m8bbs3mh8g55q15npr5j41rz','released0000','d9ef4334ec1e720d52182936117c00ed352c044d0f8d46cd845298cbc1869b72','p','admin','',1.79567778574544501305e+09,NULL,NULL,NULL);
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
CREATE INDEX ix_audit_time ON audit (time);
CREATE INDEX ix_audit_action_id ON audit (action, id);
CREATE INDEX ix_audit_actor_id ON audit (actor, id);
CREATE INDEX ix_audit_project_id ON audit (project, id);
CREATE INDEX ix_audit_thing_id ON audit (thing, id);
CREATE TRIGGER audit_append_only BEFORE UPDATE ON audit BEGIN SELECT RAISE(ABORT, 'the audit trail is append-only'); END;
CREATE INDEX ix_model_permissions_project_model ON model_permissions (project, model);
CREATE INDEX ix_evals_project_id ON evals (project, id);
CREATE INDEX ix_evals_project_updated ON evals (project, updated);
CREATE INDEX ix_eval_runs_eval_id ON eval_runs (eval, id);
CREATE INDEX ix_eval_runs_state_id ON eval_runs (state, id);
CREATE INDEX ix_eval_runs_project_state ON eval_runs (project, state);
CREATE INDEX ix_eval_items_run_state_number ON eval_items (run, state, number);
CREATE INDEX ix_models_project_id ON models (project, id);
CREATE INDEX ix_models_deleted ON models (deleted);
CREATE INDEX ix_model_aliases_model ON model_aliases (model);
COMMIT;
