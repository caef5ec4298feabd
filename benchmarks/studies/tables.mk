# Measure the results of all tables: make tables DATA=DIR MINILM=FOLDER
#
#   DATA    folder of the data sets thucnews_headlines, mrpc, semeval2010_task8, sst2, stsb, wnut17, presidio_pii and resume_ner_zh
#   MINILM  folder of all-MiniLM-L6-v2
#   ONLY    a selection of results: ONLY="sst2-engines sst2-roofline"
#   WORK    folder of runs, environments and results in progress; a second start resumes from it
#
# Paths must not contain spaces. One command runs at a time; do not use the machine for anything else. All results take hours on two
# cores. `make -n tables` prints the commands, `make -k tables` continues after a failure. The results are copied to
# benchmarks/studies/results when all of them are complete: copying one earlier would change the work tree, which the next result
# would record. WORK belongs to the commit at which it was started: do not commit during the measurements, and use another WORK for
# another commit.

WORK ?= runs/tables
PYTHON ?= python3
RESULTS := $(WORK)/results
COMMIT := $(shell git rev-parse --short HEAD)
export PATH := $(CURDIR)/.venv/bin:$(PATH)

.NOTPARALLEL:
.SECONDARY:
.DELETE_ON_ERROR:

# The training commands. Results record them with DIR, MINILM and runs/ in place of the actual paths.
thucnews-run = pipe train thucnews --out runs/$(1) --set data.root=DIR/thucnews_headlines
minilm-run = pipe train $(2) --out runs/$(1) --set data.root=DIR/$(3) --set model.name=MINILM
sample = pipe train sample --out runs/sample
thucnews = $(call thucnews-run,thucnews)
thucnews-linear = $(call thucnews-run,thucnews-linear) --set train.epochs=3
thucnews-cnn = $(call thucnews-run,thucnews-cnn) --set model.head=cnn --set train.epochs=3
thucnews-lstm = $(call thucnews-run,thucnews-lstm) --set model.head=lstm --set train.epochs=3
thucnews-gru = $(call thucnews-run,thucnews-gru) --set model.head=gru --set train.epochs=3
mrpc = $(call minilm-run,mrpc,mrpc,mrpc)
# A small model of pairs: planted faults are exported many times.
pairs = pipe train mrpc --out runs/pairs --set data.root=DIR/mrpc --set model.name= --set model.preset=tiny --set model.vocab_size=6000 \
	--set train.epochs=10 --set train.learning_rate=1e-3
mrpc-seeds = $(call minilm-run,mrpc-seeds,mrpc,mrpc) --set 'train.seeds=[0,1,2]'
sst2 = $(call minilm-run,sst2,sst2,sst2) --set train.epochs=2 --set train.learning_rate=1e-4 --set train.batch_size=64 \
	--set train.eval_every=150 --set train.seed=1
sst2-300 = $(call minilm-run,sst2-300,sst2,sst2) --set train.max_steps=300 --set train.learning_rate=1e-4 --set train.batch_size=32
stsb = $(call minilm-run,stsb,stsb,stsb) --set model.head=cnn --set train.epochs=6 --set train.learning_rate=1e-4 --set train.batch_size=16
semeval-entity = $(call minilm-run,semeval-entity,semeval2010-task8,semeval2010_task8) --set train.learning_rate=1e-4 --set train.epochs=4
# A student of the fine-tuned model with its tokenizer, for a cascade.
sst2-student = pipe train sst2 --out runs/sst2-student --set data.root=DIR/sst2 --set model.name= --set model.preset=tiny \
	--set model.vocab=runs/sst2/tokenizer.json --set train.teacher=runs/sst2 --set train.epochs=6 --set train.learning_rate=1e-3 \
	--set train.batch_size=64 --set train.eval_every=500
semeval-linear = $(call minilm-run,semeval-linear,semeval2010-task8,semeval2010_task8) --set train.learning_rate=1e-4 --set train.epochs=4 \
	--set model.head=linear

# Spans: three seeds, and the same training with transformers. The Chinese encoder is pretrained on the headlines.
seeds = --set 'train.seeds=[1,2,3]' --set train.batch_size=16
spans = $(seeds) --set train.learning_rate=1e-4
wnut17 = $(call minilm-run,wnut17,wnut17,wnut17) $(spans)
presidio = $(call minilm-run,presidio,presidio,presidio_pii) $(spans)
resume-pretrained = pipe train thucnews-pretrain --out runs/resume-pretrained --set data.root=DIR/thucnews_headlines --set train.epochs=4 \
	--set train.batch_size=16 --set model.max_length=192 --set train.report=false
resume-ner = pipe train resume-ner --out runs/resume-ner --set data.root=DIR/resume_ner_zh --set model.name=runs/resume-pretrained $(seeds) \
	--set train.learning_rate=4e-4

# The steps of training from scratch, in the order of their dependencies. Pretraining is not scored. Adam's second moment decays faster
# than usual (betas of the recipe): the embedding of an n-gram that occurs once changes by 6 times the learning rate in total, with
# 0.999 by 32 times, which memorises its text.
scratch-run = pipe train thucnews-ngrams --out runs/scratch-$(1) --set data.root=DIR/thucnews_headlines --set 'train.seeds=[1,2,3]'
scratch-plain = --set train.label_smoothing=0 --set train.token_dropout=0
scratch-taught = --set train.teacher=runs/scratch-pretrained --set train.label_smoothing=0
scratch-tiny = $(call scratch-run,tiny) $(scratch-plain) --set model.head=linear --set model.ngrams=0
scratch-cnn = $(call scratch-run,cnn) $(scratch-plain) --set model.ngrams=0
scratch-ngrams = $(call scratch-run,ngrams) $(scratch-plain)
scratch-regularised = $(call scratch-run,regularised)
scratch-pretraining = pipe train thucnews-pretrain --out runs/scratch-pretraining --set data.root=DIR/thucnews_headlines --set data.dev= \
	--set data.dev_rows=1000 --set model.preset=tiny --set model.ngrams=1048576 --set train.batch_size=16 --set train.learning_rate=2e-3 \
	--set train.seed=1 --set train.report=false
scratch-pretrained = $(call scratch-run,pretrained) --set model.preset= --set model.name=runs/scratch-pretraining
scratch-distilled = $(call scratch-run,distilled) --set model.preset= --set model.name=runs/scratch-pretraining $(scratch-taught)
scratch-small = $(call scratch-run,small) --set model.ngrams=262144 --set train.epochs=12
scratch-small-distilled = $(call scratch-run,small-distilled) --set model.ngrams=262144 --set train.epochs=12 $(scratch-taught)
scratch-none-distilled = $(call scratch-run,none-distilled) --set model.ngrams=0 --set train.epochs=12 $(scratch-taught)
STEPS = tiny cnn ngrams regularised pretraining pretrained distilled small small-distilled none-distilled

# Names in the accuracy table, baseline scores on the same rows (known, not measured here), and splits.
sample-name = the sample (1,904 train rows, from scratch)
thucnews-name = THUCNews headlines (45,000 train rows, from scratch)
thucnews-linear-name = THUCNews headlines (from scratch, linear head, 3 epochs)
thucnews-cnn-name = THUCNews headlines (from scratch, cnn head, 3 epochs)
thucnews-lstm-name = THUCNews headlines (from scratch, lstm head, 3 epochs)
thucnews-gru-name = THUCNews headlines (from scratch, gru head, 3 epochs)
mrpc-seeds-name = MRPC (pairs, MiniLM-L6 fine-tuned)
sst2-name = SST-2 (MiniLM-L6, 2 epochs)
stsb-name = STS-B (pairs, MiniLM-L6, cnn head)
semeval-entity-name = SemEval-2010 task 8 (MiniLM-L6, entity head)
semeval-linear-name = SemEval-2010 task 8 (MiniLM-L6, linear head)
wnut17-name = WNUT-17 (spans, MiniLM-L6)
presidio-name = Presidio's synthetic texts (spans, split by template, MiniLM-L6)
resume-ner-name = resumes in Chinese (spans, 4 layers of 256, pretrained on headlines)
resume-ner-before = --command "$(resume-pretrained)"
sample-floors = --floor "naive Bayes=65.2"
thucnews-floors = --floor "naive Bayes=88.87" --floor "TF-IDF and linear SVM=90.36"
$(foreach head,linear cnn lstm gru,$(eval thucnews-$(head)-floors = $$(thucnews-floors)))
mrpc-seeds-floors = --floor "always paraphrase=66.49"
sst2-split = dev
stsb-split = dev

# Names in the other tables, and the files of the requests.
thucnews-linear-engines = THUCNews (4 layers of 256, linear head)
thucnews-cnn-engines = THUCNews (4 layers of 256, cnn head)
mrpc-engines = MRPC (MiniLM-L6)
sst2-engines = SST-2 (MiniLM-L6)
thucnews-linear-file = thucnews_headlines/test.txt --columns text=0
mrpc-file = mrpc/msr_paraphrase_test.txt --columns text=3,text_pair=4
# The engine and the first stage of each cascade; its split is not that of the rows that prove the limits.
thucnews-cascades = --run $(WORK)/runs/thucnews-linear --name "THUCNews (4 layers of 256)" --command "$(thucnews-linear)" \
	--command "pipe export runs/thucnews-linear --to auto --set keep=0"
sst2-cascades = --run $(WORK)/runs/sst2 --name "SST-2 (MiniLM-L6)" --rows $(DATA)/sst2/test.tsv --split dev --command "$(sst2)" \
	--command "pipe export runs/sst2 --to auto --set keep=0"
sst2-student-cascades = $(sst2-cascades) --first $(WORK)/runs/sst2-student --first-name "a student (2 layers of 128)" \
	--command "$(sst2-student)"
loaded = --run $(WORK)/runs/sst2-300 --name "SST-2 (MiniLM-L6, 300 steps)"

SPANS = wnut17 presidio resume-ner
SCORED = sample thucnews thucnews-linear thucnews-cnn thucnews-lstm thucnews-gru mrpc-seeds sst2 stsb semeval-entity semeval-linear $(SPANS)
NAMES = $(SCORED:%=%-accuracy) imports engines-matrix-tiny engines-matrix-minilm \
	sst2-engines mrpc-engines thucnews-linear-engines thucnews-cnn-engines mrpc-offline thucnews-linear-offline \
	mrpc-serving-8 thucnews-linear-serving-1 thucnews-linear-serving-8 sst2-roofline sst2-peers-serving \
	imported-peers-serving scratch structural-faults bulk thucnews-cascades sst2-cascades sst2-student-cascades
ONLY ?= $(NAMES)
ONLY := $(ONLY)

ifeq ($(strip $(ONLY)),)
$(error ONLY: expected names of results. Known results: $(NAMES))
endif
ifneq ($(filter-out $(NAMES),$(ONLY)),)
$(error ONLY: unknown result $(filter-out $(NAMES),$(ONLY)). Known results: $(NAMES))
endif
ifeq ($(and $(DATA),$(MINILM)),)
$(error expected DATA and MINILM, the folders of the data sets and of the weights: make tables DATA=DIR MINILM=FOLDER)
endif
BEGUN := $(file < $(WORK)/commit)
ifneq ($(filter-out $(COMMIT),$(BEGUN)),)
$(error $(WORK) was started at commit $(BEGUN), the checkout is at $(COMMIT): delete it, or choose another folder with WORK=)
endif

.PHONY: tables
tables: $(ONLY:%=$(RESULTS)/%.json)
	cp $^ benchmarks/studies/results/
	python -m pipework.benchmarks.studies.documents.readme

here = $(subst MINILM,$(MINILM),$(subst DIR/,$(DATA)/,$(subst runs/,$(WORK)/runs/,$(1))))
part = $(WORK)/parts/$(@F)
begin = @mkdir -p $(@D) $(WORK)/parts; echo $(COMMIT) > $(WORK)/commit
end = mv $(part) $@

$(WORK)/trained/%:
	$(begin)
	$(call here,$($*)) --resume
	touch $@

$(WORK)/exported/%: $(WORK)/trained/%
	$(begin)
	$(call here,pipe export runs/$* --to auto --set keep=0)
	touch $@

# The serving results compare packed engines, on any machine.
$(WORK)/exported/sst2-300: $(WORK)/trained/sst2-300
	$(begin)
	pipe export $(WORK)/runs/sst2-300 --to auto --layout packed --set keep=0
	touch $@

$(RESULTS)/%-accuracy.json: $(WORK)/trained/%
	$(begin)
	python -m pipework.benchmarks.studies.accuracy --run $(WORK)/runs/$* --name "$($*-name)" --split $(or $($*-split),test) $($*-floors) --command "$($*)" --out $(part)
	$(end)

$(SPANS:%=$(RESULTS)/%-accuracy.json): $(RESULTS)/%-accuracy.json: $(WORK)/parts/%-run-ner.txt $(WORK)/trained/%
	$(begin)
	python -m pipework.benchmarks.studies.accuracy --run $(WORK)/runs/$* --name "$($*-name)" --floor "$$(cat $<)" $($*-before) --command "$($*)" --out $(part)
	$(end)

$(WORK)/parts/%-run-ner.txt: $(WORK)/trained/% $(WORK)/run-ner/ready
	python -m pipework.benchmarks.studies.run_ner --run $(WORK)/runs/$* --packages $(WORK)/run-ner --out $@

$(WORK)/trained/resume-ner: $(WORK)/trained/resume-pretrained

$(WORK)/run-ner/ready:
	pip install -q --no-deps --target $(@D) accelerate==1.15.0 psutil==7.2.2
	touch $@

$(RESULTS)/%-engines.json: $(WORK)/exported/%
	$(begin)
	python -m pipework.benchmarks.studies.engines --run $(WORK)/runs/$* --name "$($*-engines)" --command "$($*)" \
		--command "pipe export runs/$* --to auto --set keep=0" --out $(part)
	$(end)

$(RESULTS)/%-offline.json: $(WORK)/exported/%
	$(begin)
	pipe bench $(WORK)/runs/$* --file $(DATA)/$($*-file) --seconds 5 --json $(part)
	$(end)

$(RESULTS)/%-serving-1.json: $(WORK)/exported/%
	$(begin)
	python -m pipework.benchmarks.studies.pipe_serve $(WORK)/runs/$* --file $(DATA)/$($*-file) --batch 1 --concurrency 1,4,16 --seconds 6 --json $(part)
	$(end)

$(RESULTS)/%-serving-8.json: $(WORK)/exported/%
	$(begin)
	python -m pipework.benchmarks.studies.pipe_serve $(WORK)/runs/$* --file $(DATA)/$($*-file) --batch 8 --concurrency 1,4,16 --seconds 6 --json $(part)
	$(end)

$(RESULTS)/thucnews-cascades.json: $(WORK)/exported/thucnews-linear
$(RESULTS)/sst2-cascades.json $(RESULTS)/sst2-student-cascades.json: $(WORK)/exported/sst2
$(RESULTS)/sst2-student-cascades.json: $(WORK)/trained/sst2-student
$(WORK)/trained/sst2-student: $(WORK)/trained/sst2
$(RESULTS)/%-cascades.json:
	$(begin)
	python -m pipework.benchmarks.studies.cascades $($*-cascades) --out $(part)
	$(end)

# It ends with 3 if a fault passes, which the result lists.
$(RESULTS)/structural-faults.json: $(WORK)/trained/sample $(WORK)/trained/pairs
	$(begin)
	python -m pipework.benchmarks.studies.structural_faults --runs $(WORK)/runs/sample $(WORK)/runs/pairs --out $(part) || test $$? -eq 3
	$(end)

$(RESULTS)/sst2-roofline.json: $(WORK)/exported/sst2-300
	$(begin)
	python -m pipework.benchmarks.studies.roofline $(loaded) --seconds 20 --out $(part)
	$(end)

# Servers that cannot be installed here are skipped; the result records the reason.
$(RESULTS)/sst2-peers-serving.json: $(WORK)/exported/sst2-300
	$(begin)
	-$(MAKE) triton
	-$(MAKE) -f benchmarks/studies/tables.mk DATA=$(DATA) MINILM=$(MINILM) WORK=$(WORK) $(WORK)/infinity/ready
	python -m pipework.benchmarks.studies.peers.serving $(loaded) --infinity $(WORK)/infinity --seconds 4 --search-seconds 1.5 --rounds 2 --out $(part)
	$(end)

$(WORK)/infinity/ready: benchmarks/studies/peers/infinity.txt
	$(PYTHON) -m venv --clear $(@D)
	$(@D)/bin/python -m pip --disable-pip-version-check -q install --no-deps -r $<
	touch $@

# A model that transformers has saved, as somebody who has one would serve it.
$(WORK)/exported/imported: $(WORK)/trained/sst2-300
	$(begin)
	rm -rf $(WORK)/runs/imported
	pipe import $(WORK)/runs/sst2-300/checkpoint --out $(WORK)/runs/imported --data $(DATA)/sst2/dev.tsv --set data.columns.text=sentence
	pipe export $(WORK)/runs/imported --to auto
	touch $@

$(RESULTS)/imported-peers-serving.json: $(WORK)/exported/imported
	$(begin)
	python -m pipework.benchmarks.studies.peers.serving --run $(WORK)/runs/imported --name "SST-2 (MiniLM-L6, imported)" --seconds 4 --search-seconds 1.5 --rounds 2 \
		--only pipework "transformers pipeline, torch fp32" "onnxruntime fp32, padded, FastAPI" "onnxruntime int8, padded, FastAPI" --out $(part)
	$(end)

$(RESULTS)/bulk.json: $(WORK)/exported/sample
	$(begin)
	rm -rf $(WORK)/bulk
	python -m pipework.benchmarks.studies.bulk --run $(WORK)/runs/sample --name "the sample" --work $(WORK)/bulk --out $(part)
	$(end)

$(RESULTS)/imports.json:
	$(begin)
	python -m pipework.benchmarks.studies.imports --out $(part)
	$(end)

$(RESULTS)/engines-matrix-tiny.json:
	$(begin)
	python -m pipework.benchmarks.studies.matrix --out $(part)
	$(end)

$(RESULTS)/engines-matrix-minilm.json:
	$(begin)
	python -m pipework.benchmarks.studies.matrix --model $(MINILM) --weights all-MiniLM-L6-v2 --out $(part)
	$(end)

# A step needs the run that it starts from or learns from.
STEP = $(WORK)/trained/scratch-
$(STEP)pretrained $(STEP)distilled: $(STEP)pretraining
$(STEP)distilled $(STEP)small-distilled $(STEP)none-distilled: $(STEP)pretrained

$(RESULTS)/scratch.json: $(STEPS:%=$(WORK)/trained/scratch-%)
	$(begin)
	python -m pipework.benchmarks.studies.scratch --runs $(WORK)/runs --out $(part)
	$(end)
