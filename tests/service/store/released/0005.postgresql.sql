CREATE FUNCTION public.finery_audit_refuse() RETURNS trigger
    LANGUAGE plpgsql
    AS $$ BEGIN RAISE EXCEPTION 'the audit trail is append-only'; END $$;
CREATE TABLE public.alembic_version (
    version_num character varying(32) NOT NULL
);
CREATE TABLE public.attempts (
    id text NOT NULL,
    job text NOT NULL,
    number integer NOT NULL,
    fencing bigint NOT NULL,
    executor text NOT NULL,
    placement json NOT NULL,
    resources json NOT NULL,
    state text NOT NULL,
    handle json NOT NULL,
    created double precision NOT NULL,
    started double precision,
    ended double precision,
    exit_code integer,
    reason text,
    message text NOT NULL,
    ingested bigint NOT NULL,
    "offset" bigint NOT NULL,
    skipped_lines bigint DEFAULT '0'::bigint NOT NULL
);
CREATE TABLE public.audit (
    id text NOT NULL,
    "time" double precision NOT NULL,
    action text NOT NULL,
    actor text NOT NULL,
    role text NOT NULL,
    actor_project text NOT NULL,
    address text NOT NULL,
    request text NOT NULL,
    kind text NOT NULL,
    thing text NOT NULL,
    project text,
    details json NOT NULL
);
CREATE TABLE public.ended_sessions (
    id text NOT NULL,
    expires double precision NOT NULL
);
CREATE TABLE public.eval_items (
    run text NOT NULL,
    number integer NOT NULL,
    state text NOT NULL,
    item json NOT NULL,
    given json NOT NULL,
    sample json NOT NULL,
    results json NOT NULL,
    done double precision
);
CREATE TABLE public.eval_runs (
    id text NOT NULL,
    eval text NOT NULL,
    project text NOT NULL,
    name text NOT NULL,
    state text NOT NULL,
    data_source json NOT NULL,
    metadata json NOT NULL,
    model text NOT NULL,
    summary json NOT NULL,
    error json NOT NULL,
    items integer NOT NULL,
    created_by text NOT NULL,
    role text NOT NULL,
    created double precision NOT NULL,
    started double precision,
    finished double precision
);
CREATE TABLE public.evals (
    id text NOT NULL,
    project text NOT NULL,
    name text NOT NULL,
    data_source_config json NOT NULL,
    testing_criteria json NOT NULL,
    metadata json NOT NULL,
    created_by text NOT NULL,
    created double precision NOT NULL,
    updated double precision NOT NULL
);
CREATE TABLE public.events (
    job text NOT NULL,
    id bigint NOT NULL,
    "time" double precision NOT NULL,
    event text NOT NULL,
    stage text,
    step bigint,
    attempt text,
    fields json NOT NULL
);
CREATE TABLE public.files (
    id text NOT NULL,
    project text NOT NULL,
    filename text NOT NULL,
    purpose text NOT NULL,
    state text NOT NULL,
    bytes bigint,
    sha256 text,
    "offset" bigint NOT NULL,
    created_by text NOT NULL,
    created double precision NOT NULL,
    completed double precision,
    openai json NOT NULL,
    reserved bigint DEFAULT '0'::bigint NOT NULL
);
CREATE TABLE public.gpu_slots (
    host text NOT NULL,
    number integer NOT NULL,
    kind text NOT NULL,
    memory bigint NOT NULL,
    uuid text NOT NULL,
    present boolean NOT NULL,
    attempt text
);
CREATE TABLE public.hosts (
    name text NOT NULL,
    executor text NOT NULL,
    cpus integer NOT NULL,
    memory bigint NOT NULL,
    state text NOT NULL,
    seen double precision NOT NULL,
    info json NOT NULL
);
CREATE TABLE public.jobs (
    id text NOT NULL,
    project text NOT NULL,
    kind text NOT NULL,
    name text NOT NULL,
    recipe text NOT NULL,
    overrides json NOT NULL,
    resources json NOT NULL,
    depends_on json NOT NULL,
    secrets json NOT NULL,
    openai json NOT NULL,
    digest text NOT NULL,
    idempotency_key text,
    submitted_by text NOT NULL,
    asked_priority integer NOT NULL,
    deadline double precision,
    expected_seconds double precision,
    max_retries integer NOT NULL,
    state text NOT NULL,
    reason text,
    message text NOT NULL,
    priority integer NOT NULL,
    created double precision NOT NULL,
    updated double precision NOT NULL,
    started double precision,
    finished double precision,
    not_before double precision NOT NULL,
    retries integer NOT NULL,
    preemptions integer NOT NULL,
    attempt text,
    attempts integer NOT NULL,
    last_event bigint NOT NULL,
    progress json NOT NULL,
    max_seconds double precision,
    ttl_seconds_after_finished double precision,
    attempts_before_retry integer DEFAULT 0 NOT NULL
);
CREATE TABLE public.leases (
    name text NOT NULL,
    holder text NOT NULL,
    fencing bigint NOT NULL,
    expires double precision NOT NULL,
    attempt text
);
CREATE TABLE public.model_permissions (
    id text NOT NULL,
    owner text NOT NULL,
    model text NOT NULL,
    project text NOT NULL,
    created_by text NOT NULL,
    created double precision NOT NULL
);
CREATE TABLE public.models (
    id text NOT NULL,
    project text NOT NULL,
    name text NOT NULL,
    fingerprint text NOT NULL,
    job text NOT NULL,
    path text NOT NULL,
    base text NOT NULL,
    parameters bigint,
    scores json NOT NULL,
    openai json NOT NULL,
    created double precision NOT NULL
);
CREATE TABLE public.projects (
    name text NOT NULL,
    weight double precision NOT NULL,
    max_gpus integer,
    max_running integer,
    max_queued integer,
    settings json NOT NULL,
    created double precision NOT NULL
);
CREATE TABLE public.scores (
    job text NOT NULL,
    stage text NOT NULL,
    benchmark text NOT NULL,
    metric text NOT NULL,
    project text NOT NULL,
    value double precision NOT NULL,
    created double precision NOT NULL
);
CREATE TABLE public.stage_results (
    job text NOT NULL,
    stage text NOT NULL,
    attempt text NOT NULL,
    fingerprint text NOT NULL,
    seconds double precision NOT NULL,
    reused boolean NOT NULL,
    metrics json NOT NULL,
    finished double precision NOT NULL
);
CREATE TABLE public.tokens (
    id text NOT NULL,
    prefix text NOT NULL,
    sha256 text NOT NULL,
    project text NOT NULL,
    role text NOT NULL,
    name text NOT NULL,
    created double precision NOT NULL,
    expires double precision,
    revoked double precision,
    last_used double precision
);
INSERT INTO public.alembic_version VALUES ('0005');
INSERT INTO public.attempts VALUES ('attempt-01m8bbtpfjk3dgm64kxrts3mhp', 'job-01m8bbtpc7bemxwdbtn1p7q38d', 1, 1, 'local', '[{"host": "here", "gpus": [0]}]', '{"gpus": 0, "gpu_memory": 0, "gpu_kind": null, "cpus": 1, "memory": 0, "hosts": 1}', 'ended', '{}', 1795677837.8916757, NULL, 1795677837.9921155, NULL, NULL, '', 0, 0, 0);
INSERT INTO public.audit VALUES ('audit-01m8bbtp8a501hn4wjrt98rsnc', 1795677837.5787656, 'token.create', 'finery', '', '', '', '', 'token', 'token-01m8bbtp68esqqkhgeh9bg3pbt', 'p', '{"role": "admin"}');
INSERT INTO public.audit VALUES ('audit-01m8bbtpb5hkhd0dwnhgbck1r7', 1795677837.669439, 'file.create', 'finery', '', '', '', '', 'file', 'file-01m8bbtp972p2jzg7xp962xwwp', 'p', '{"filename": "train.jsonl", "purpose": "fine-tune"}');
INSERT INTO public.audit VALUES ('audit-01m8bbtpexnr2txahg8tnv5v2e', 1795677837.7895749, 'job.submit', 'finery', '', '', '', '', 'job', 'job-01m8bbtpc7bemxwdbtn1p7q38d', 'p', '{"name": "", "via": "api"}');
INSERT INTO public.audit VALUES ('audit-01m8bbtpms822sraybdcz4kqa8', 1795677837.9770446, 'model.publish', 'finery', '', '', '', '', 'model', 'model-01m8bbtpmq1avm2194yz5xypmg', 'p', '{"name": "m", "fingerprint": "f", "job": "job-01m8bbtpc7bemxwdbtn1p7q38d"}');
INSERT INTO public.audit VALUES ('audit-01m8bbtpnv2mvafyhtachx1yg5', 1795677838.0114765, 'permission.create', 'finery', '', '', '', '', 'permission', 'cp-01m8bbtpnt5e5yy6q9vsr7beev', 'p', '{"model": "m", "to": "p"}');
INSERT INTO public.audit VALUES ('audit-01m8bbtpnyjxs62mg9g30ssd77', 1795677838.0144484, 'eval.create', 'finery', '', '', '', '', 'eval', 'eval-01m8bbtpnwdyn6wk3cbwa4zz05', 'p', '{"name": "e"}');
INSERT INTO public.audit VALUES ('audit-01m8bbtppq4r36y1gv0krx65yj', 1795677838.0393574, 'eval.run', 'finery', '', '', '', '', 'evalrun', 'evalrun-01m8bbtpp28wsemt2q9t5nje5a', 'p', '{"eval": "eval-01m8bbtpnwdyn6wk3cbwa4zz05", "model": "m"}');
INSERT INTO public.audit VALUES ('audit-01m8bbtpq3pgt3msszdqcjyrgw', 1795677838.0520215, 'token.create', 'finery', '', '', '', '', 'token', 'token-01m8bbtppzq356txe7arbbrh56', 'p', '{"role": "admin"}');
INSERT INTO public.ended_sessions VALUES ('nonce', 4000000000);
INSERT INTO public.eval_items VALUES ('evalrun-01m8bbtpp28wsemt2q9t5nje5a', 0, 'waiting', '{"a": 1}', '{}', '{}', '[]', NULL);
INSERT INTO public.eval_runs VALUES ('evalrun-01m8bbtpp28wsemt2q9t5nje5a', 'eval-01m8bbtpnwdyn6wk3cbwa4zz05', 'p', 'r', 'queued', '{}', '{}', 'm', '{"counts": {"pass": 0, "fail": 0, "error": 0}, "criteria": {}, "usage": {}}', '{}', 1, 'finery', 'submitter', 1795677838.018574, NULL, NULL);
INSERT INTO public.evals VALUES ('eval-01m8bbtpnwdyn6wk3cbwa4zz05', 'p', 'e', '{}', '[]', '{}', 'finery', 1795677838.012277, 1795677838.012277);
INSERT INTO public.events VALUES ('job-01m8bbtpc7bemxwdbtn1p7q38d', 1, 1795677837.7448363, 'state', NULL, NULL, NULL, '{"state": "queued"}');
INSERT INTO public.events VALUES ('job-01m8bbtpc7bemxwdbtn1p7q38d', 2, 1795677837.91145, 'state', NULL, NULL, 'attempt-01m8bbtpfjk3dgm64kxrts3mhp', '{"state": "starting", "from": "queued"}');
INSERT INTO public.events VALUES ('job-01m8bbtpc7bemxwdbtn1p7q38d', 3, 1795677838.000271, 'state', NULL, NULL, 'attempt-01m8bbtpfjk3dgm64kxrts3mhp', '{"state": "succeeded", "from": "starting"}');
INSERT INTO public.files VALUES ('file-01m8bbtp972p2jzg7xp962xwwp', 'p', 'train.jsonl', 'fine-tune', 'uploading', NULL, NULL, 0, '', 1795677837.6074543, NULL, '{}', 0);
INSERT INTO public.gpu_slots VALUES ('here', 0, 'H200', 137438953472, '', true, NULL);
INSERT INTO public.hosts VALUES ('here', 'local', 1, 0, 'up', 1795677837.4001539, '{}');
INSERT INTO public.jobs VALUES ('job-01m8bbtpc7bemxwdbtn1p7q38d', 'p', 'api', '', 'name: é
', '[]', '{"gpus": 0, "gpu_memory": 0, "gpu_kind": null, "cpus": 1, "memory": 0, "hosts": 1}', '[]', '[]', '{}', '30c49a53ab50c197b11a04880199962e0922898554d298342aa9e5e34e024135', 'k', '', 0, NULL, NULL, 3, 'succeeded', NULL, '', 0, 1795677837.7448363, 1795677838.000271, NULL, 1795677838.000271, 0, 0, 0, 'attempt-01m8bbtpfjk3dgm64kxrts3mhp', 1, 3, '{}', NULL, NULL, 0);
INSERT INTO public.leases VALUES ('job-01m8bbtpc7bemxwdbtn1p7q38d', '', 1, 0, NULL);
INSERT INTO public.model_permissions VALUES ('cp-01m8bbtpnt5e5yy6q9vsr7beev', 'p', 'm', 'p', 'finery', 1795677838.010293);
INSERT INTO public.models VALUES ('model-01m8bbtpmq1avm2194yz5xypmg', 'p', 'm', 'f', 'job-01m8bbtpc7bemxwdbtn1p7q38d', '/m', '', NULL, '{}', '{}', 1795677837.9755392);
INSERT INTO public.projects VALUES ('p', 1, NULL, NULL, NULL, '{}', 1795677837.5281255);
INSERT INTO public.scores VALUES ('job-01m8bbtpc7bemxwdbtn1p7q38d', 'evaluate', 'glue/mrpc', 'f1', 'p', 0.5, 1795677837.9513965);
INSERT INTO public.stage_results VALUES ('job-01m8bbtpc7bemxwdbtn1p7q38d', 'evaluate', 'attempt-01m8bbtpfjk3dgm64kxrts3mhp', '', 0, false, '{"glue/mrpc": {"f1": 0.5}}', 1795677837.9388278);
INSERT INTO public.tokens VALUES ('token-01m8bbtp68esqqkhgeh9bg3pbt', 'abc', '0000000000000000000000000000000000000000000000000000000000000000', 'p', 'admin', '', 1795677837.5121508, NULL, NULL, NULL);
INSERT INTO public.tokens VALUES ('token-01m8bbtppzq356txe7arbbrh56', 'released0000', 'd9ef4334ec1e720d52182936117c00ed352c044d0f8d46cd845298cbc1869b72', 'p', 'admin', '', 1795677838.047437, NULL, NULL, NULL);
ALTER TABLE ONLY public.alembic_version
    ADD CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num);
ALTER TABLE ONLY public.attempts
    ADD CONSTRAINT pk_attempts PRIMARY KEY (id);
ALTER TABLE ONLY public.audit
    ADD CONSTRAINT pk_audit PRIMARY KEY (id);
ALTER TABLE ONLY public.ended_sessions
    ADD CONSTRAINT pk_ended_sessions PRIMARY KEY (id);
ALTER TABLE ONLY public.eval_items
    ADD CONSTRAINT pk_eval_items PRIMARY KEY (run, number);
ALTER TABLE ONLY public.eval_runs
    ADD CONSTRAINT pk_eval_runs PRIMARY KEY (id);
ALTER TABLE ONLY public.evals
    ADD CONSTRAINT pk_evals PRIMARY KEY (id);
ALTER TABLE ONLY public.events
    ADD CONSTRAINT pk_events PRIMARY KEY (job, id);
ALTER TABLE ONLY public.files
    ADD CONSTRAINT pk_files PRIMARY KEY (id);
ALTER TABLE ONLY public.gpu_slots
    ADD CONSTRAINT pk_gpu_slots PRIMARY KEY (host, number);
ALTER TABLE ONLY public.hosts
    ADD CONSTRAINT pk_hosts PRIMARY KEY (name);
ALTER TABLE ONLY public.jobs
    ADD CONSTRAINT pk_jobs PRIMARY KEY (id);
ALTER TABLE ONLY public.leases
    ADD CONSTRAINT pk_leases PRIMARY KEY (name);
ALTER TABLE ONLY public.model_permissions
    ADD CONSTRAINT pk_model_permissions PRIMARY KEY (id);
ALTER TABLE ONLY public.models
    ADD CONSTRAINT pk_models PRIMARY KEY (id);
ALTER TABLE ONLY public.projects
    ADD CONSTRAINT pk_projects PRIMARY KEY (name);
ALTER TABLE ONLY public.scores
    ADD CONSTRAINT pk_scores PRIMARY KEY (job, stage, benchmark, metric);
ALTER TABLE ONLY public.stage_results
    ADD CONSTRAINT pk_stage_results PRIMARY KEY (job, stage);
ALTER TABLE ONLY public.tokens
    ADD CONSTRAINT pk_tokens PRIMARY KEY (id);
ALTER TABLE ONLY public.attempts
    ADD CONSTRAINT uq_attempts_job_number UNIQUE (job, number);
ALTER TABLE ONLY public.jobs
    ADD CONSTRAINT uq_jobs_project_idempotency_key UNIQUE (project, idempotency_key);
ALTER TABLE ONLY public.model_permissions
    ADD CONSTRAINT uq_model_permissions_owner_model_project UNIQUE (owner, model, project);
ALTER TABLE ONLY public.models
    ADD CONSTRAINT uq_models_project_name_fingerprint UNIQUE (project, name, fingerprint);
ALTER TABLE ONLY public.tokens
    ADD CONSTRAINT uq_tokens_prefix UNIQUE (prefix);
CREATE INDEX ix_attempts_state ON public.attempts USING btree (state);
CREATE INDEX ix_audit_action_id ON public.audit USING btree (action, id);
CREATE INDEX ix_audit_actor_id ON public.audit USING btree (actor, id);
CREATE INDEX ix_audit_project_id ON public.audit USING btree (project, id);
CREATE INDEX ix_audit_thing_id ON public.audit USING btree (thing, id);
CREATE INDEX ix_audit_time ON public.audit USING btree ("time");
CREATE INDEX ix_eval_items_run_state_number ON public.eval_items USING btree (run, state, number);
CREATE INDEX ix_eval_runs_eval_id ON public.eval_runs USING btree (eval, id);
CREATE INDEX ix_eval_runs_project_state ON public.eval_runs USING btree (project, state);
CREATE INDEX ix_eval_runs_state_id ON public.eval_runs USING btree (state, id);
CREATE INDEX ix_evals_project_id ON public.evals USING btree (project, id);
CREATE INDEX ix_evals_project_updated ON public.evals USING btree (project, updated);
CREATE INDEX ix_files_project_id ON public.files USING btree (project, id);
CREATE INDEX ix_files_project_sha256 ON public.files USING btree (project, sha256);
CREATE INDEX ix_jobs_finished ON public.jobs USING btree (finished);
CREATE INDEX ix_jobs_project_id ON public.jobs USING btree (project, id);
CREATE INDEX ix_jobs_project_state_id ON public.jobs USING btree (project, state, id);
CREATE INDEX ix_jobs_state_id ON public.jobs USING btree (state, id);
CREATE INDEX ix_jobs_updated ON public.jobs USING btree (updated);
CREATE INDEX ix_leases_holder ON public.leases USING btree (holder);
CREATE INDEX ix_model_permissions_project_model ON public.model_permissions USING btree (project, model);
CREATE INDEX ix_models_project_id ON public.models USING btree (project, id);
CREATE INDEX ix_scores_project_benchmark_metric_value ON public.scores USING btree (project, benchmark, metric, value);
CREATE TRIGGER audit_append_only BEFORE UPDATE ON public.audit FOR EACH ROW EXECUTE FUNCTION public.finery_audit_refuse();
ALTER TABLE ONLY public.attempts
    ADD CONSTRAINT fk_attempts_job_jobs FOREIGN KEY (job) REFERENCES public.jobs(id);
ALTER TABLE ONLY public.eval_items
    ADD CONSTRAINT fk_eval_items_run_eval_runs FOREIGN KEY (run) REFERENCES public.eval_runs(id);
ALTER TABLE ONLY public.eval_runs
    ADD CONSTRAINT fk_eval_runs_eval_evals FOREIGN KEY (eval) REFERENCES public.evals(id);
ALTER TABLE ONLY public.eval_runs
    ADD CONSTRAINT fk_eval_runs_project_projects FOREIGN KEY (project) REFERENCES public.projects(name);
ALTER TABLE ONLY public.evals
    ADD CONSTRAINT fk_evals_project_projects FOREIGN KEY (project) REFERENCES public.projects(name);
ALTER TABLE ONLY public.events
    ADD CONSTRAINT fk_events_job_jobs FOREIGN KEY (job) REFERENCES public.jobs(id);
ALTER TABLE ONLY public.files
    ADD CONSTRAINT fk_files_project_projects FOREIGN KEY (project) REFERENCES public.projects(name);
ALTER TABLE ONLY public.gpu_slots
    ADD CONSTRAINT fk_gpu_slots_host_hosts FOREIGN KEY (host) REFERENCES public.hosts(name);
ALTER TABLE ONLY public.jobs
    ADD CONSTRAINT fk_jobs_project_projects FOREIGN KEY (project) REFERENCES public.projects(name);
ALTER TABLE ONLY public.model_permissions
    ADD CONSTRAINT fk_model_permissions_owner_projects FOREIGN KEY (owner) REFERENCES public.projects(name);
ALTER TABLE ONLY public.model_permissions
    ADD CONSTRAINT fk_model_permissions_project_projects FOREIGN KEY (project) REFERENCES public.projects(name);
ALTER TABLE ONLY public.models
    ADD CONSTRAINT fk_models_project_projects FOREIGN KEY (project) REFERENCES public.projects(name);
ALTER TABLE ONLY public.scores
    ADD CONSTRAINT fk_scores_job_jobs FOREIGN KEY (job) REFERENCES public.jobs(id);
ALTER TABLE ONLY public.scores
    ADD CONSTRAINT fk_scores_project_projects FOREIGN KEY (project) REFERENCES public.projects(name);
ALTER TABLE ONLY public.stage_results
    ADD CONSTRAINT fk_stage_results_job_jobs FOREIGN KEY (job) REFERENCES public.jobs(id);
ALTER TABLE ONLY public.tokens
    ADD CONSTRAINT fk_tokens_project_projects FOREIGN KEY (project) REFERENCES public.projects(name);
