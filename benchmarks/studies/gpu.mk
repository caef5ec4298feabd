# Test and measure pipework on a GPU: make gpu WHEELS=DIR DATA=DIR MINILM=FOLDER
#
#   WHEELS  folder of the packages, made by gpu-join; torch, transformers and Python are those of PYTHON
#   DATA    folder of the data set sst2
#   MINILM  folder of all-MiniLM-L6-v2
#   WORK    folder of the environment, runs, logs and results; a second start repeats only the steps that have not passed
#   ONLY    a selection of steps: ONLY="doctor gpu-tests"
#   DRY=1   run the commands with few steps and texts, on any machine and without WHEELS; on the CPU where there is no GPU
#   PAPER   with DRY, the command that runs `pipe` on the paper GPU of tests/paper_gpu
#
# Packages for a machine without network: make gpu-wheels PARTS=DIR here, make gpu-join PARTS=DIR WHEELS=DIR there.
# Paths must not contain spaces. A step that fails does not stop the others; `make -n gpu` prints the commands.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.ONESHELL:
.NOTPARALLEL:

WORK ?= runs/gpu
PYTHON ?= python3
export PATH := $(if $(DRY),,$(abspath $(WORK))/venv/bin:)$(CURDIR)/.venv/bin:$(PATH)
export HF_HUB_OFFLINE := 1
# Threads of OpenMP that wait would take the processors from other threads; pipe sets this itself.
export OMP_WAIT_POLICY := PASSIVE
STUDY = python -P -m pipework.benchmarks.studies
RESULTS := $(WORK)/results
DONE := $(WORK)/done
RUNS := $(WORK)/runs
FILES := $(WORK)/texts

# The runs: the precision of the training, or the width, layers, heads and inner width of random weights.
PRECISIONS := fp16 bf16 fp32
SHAPES := bert-base bert-large
bert-base := 768 12 12 3072
bert-large := 1024 24 16 4096
MINILM_RUN := minilm-fp16
MODELS := $(MINILM_RUN) $(SHAPES)
ENGINES := fp16-padded fp16-packed fp16-varlen
LENGTHS := log-normal 128-tokens squad
# Median, sigma and maximum of the words of a text; each is a token of MiniLM, and two tokens mark the ends.
log-normal := 20 0.6 126
128-tokens := 126 0 126
squad := 150 0.35 382
BATCH := 512
SECONDS := 3
CLIENTS := 16,64,256
TRAINED := --set train.batch_size=64 --set train.learning_rate=1e-4 --set train.epochs=1
RANDOM := --set train.max_steps=20 --set data.dev= --set data.dev_rows=400
BACKEND := inductor
ifdef DRY
bert-base := 32 2 2 64
BATCH := 4
SECONDS := 0.1
CLIENTS := 1,2
TRAINED := --set train.max_steps=4 --set train.batch_size=8
RANDOM := --set train.max_steps=2 --set data.dev= --set data.dev_rows=20
BACKEND := eager
endif

STEPS := doctor gpu-tests $(PRECISIONS:%=train-minilm-%) $(PRECISIONS:%=trainer-minilm-%) ddp-2 resume \
	$(SHAPES:%=train-%) export-$(MINILM_RUN)-fp32-padded export-$(MINILM_RUN)-fp32-packed \
	$(foreach model,$(MODELS),$(ENGINES:%=export-$(model)-%)) $(if $(DRY),paper-export) measure-$(MINILM_RUN) \
	$(foreach model,$(MODELS),$(LENGTHS:%=speed-$(model)-%) torch-$(model)) served-1 served-32 served-workers
# The dry run leaves out steps whose commands differ from another step in values only.
LEFT_OUT := $(if $(DRY),train-minilm-bf16 trainer-minilm-bf16 trainer-minilm-fp16 train-bert-large %-fp32-packed \
	export-minilm-fp16-fp16-padded export-minilm-fp16-fp16-packed %-128-tokens %-log-normal torch-bert-base torch-bert-large served-1 served-32 \
	$(foreach model,$(SHAPES),$(ENGINES:%=export-$(model)-%) $(LENGTHS:%=speed-$(model)-%)))
ONLY ?= $(STEPS)

ifneq ($(filter-out gpu-wheels gpu-join,$(or $(MAKECMDGOALS),gpu)),)
ifneq ($(filter-out $(STEPS),$(ONLY)),)
$(error ONLY: unknown step $(filter-out $(STEPS),$(ONLY)). Known steps: $(STEPS))
endif
ifeq ($(and $(DATA),$(MINILM),$(or $(DRY),$(WHEELS))),)
$(error expected WHEELS, DATA and MINILM, the folders of the packages, the data sets and the weights: \
	make gpu WHEELS=DIR DATA=DIR MINILM=FOLDER)
endif
endif

comma := ,
.PHONY: gpu steps gpu-wheels gpu-join
gpu: $(if $(DRY),,$(WORK)/venv/ready)
	@$(MAKE) --no-print-directory -k -f benchmarks/studies/gpu.mk steps || true
	$(STUDY).gpu_report --work $(WORK) --out $(RESULTS)/report.txt $(filter-out $(LEFT_OUT),$(ONLY)) \
		$(addprefix --left-out=,$(filter $(LEFT_OUT),$(ONLY)))

steps: $(patsubst %,$(DONE)/%,$(filter-out $(LEFT_OUT),$(ONLY)))

# Each step writes its output to a log, and its duration to the file that marks it as passed.
define begin
@mkdir -p $(DONE) $(RESULTS) $(WORK)/logs $(WORK)/failed $(WORK)/skipped
rm -f $(WORK)/failed/$(@F) $(WORK)/skipped/$(@F)
finish() {
	code=$$?
	if [ -e $(WORK)/skipped/$(@F) ]; then echo "$(@F): skipped: $$(cat $(WORK)/skipped/$(@F))" >&3
	elif [ $$code -eq 0 ]; then echo $$SECONDS > $@; echo "$(@F): passed in $$SECONDS s" >&3
	else echo "exit code $$code, see $(WORK)/logs/$(@F).log" | tee $(WORK)/failed/$(@F) | sed 's/^/$(@F): failed: /' >&3
	fi
}
exec 3>&1 > $(WORK)/logs/$(@F).log 2>&1
trap finish EXIT
endef
skip = { echo "$(1)" > $(WORK)/skipped/$(@F); exit 0; }

# A virtual environment does not see the packages of the environment whose Python creates it, if that is virtual too.
$(WORK)/venv/ready:
	@$(PYTHON) -m venv --clear --system-site-packages $(@D)
	$(PYTHON) -c 'import site; print(*site.getsitepackages(), sep="\n")' \
		> "$$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/outer.pth"
	python -m pip install -q --no-index --find-links $(WHEELS) -e '.[train,export,bench]' \
		'onnxruntime-gpu$(if $(CUDA),[cuda$(comma)cudnn])' cuda-python accelerate pytest
	touch $@

$(DONE)/doctor:
	$(begin)
	$(or $(PAPER),pipe) doctor --json > $(RESULTS)/doctor.json
	$(if $(DRY),$(if $(PAPER),,$(call skip,there is no paper GPU)))
	python -c 'import json, sys; print(*(found := [part["details"] for part in json.load(sys.stdin)["engines"]]), sep="\n"); \
		sys.exit(not any(details.endswith("on CUDA") and "CPU" not in details for details in found))' < $(RESULTS)/doctor.json

$(DONE)/gpu-tests:
	$(begin)
	python -m pytest -m gpu -W default --junitxml=$(RESULTS)/gpu-tests.xml $$(grep -rl 'mark[.]gpu' tests --include='test_*.py')
	$(if $(DRY),$(call skip,the tests exist; they need a CUDA device))

train = pipe train sst2 --set data.root=$(DATA)/sst2 --set model.max_length=384
minilm = $(train) --set model.name=$(MINILM) $(TRAINED)
# With random weights, or after a few steps, nothing is learned.
UNLEARNED = || test $$? -eq 3

$(PRECISIONS:%=$(DONE)/train-minilm-%): $(DONE)/train-minilm-%:
	$(begin)
	$(minilm) --set train.precision=$* --out $(RUNS)/minilm-$* --resume $(if $(DRY),$(UNLEARNED))

$(PRECISIONS:%=$(DONE)/trainer-minilm-%): $(DONE)/trainer-minilm-%: $(DONE)/train-minilm-%
	$(begin)
	$(STUDY).run_classification --run $(RUNS)/minilm-$* --out $(RESULTS)/trainer-minilm-$*.json

$(DONE)/ddp-2:
	$(begin)
	$(if $(DRY),,test "$$(nvidia-smi -L | wc -l)" -ge 2 || $(call skip,this machine has one GPU))
	$(minilm) --nproc 2 --out $(RUNS)/ddp-2 --resume $(if $(DRY),$(UNLEARNED))

# Killed after its first checkpoint, it continues from there.
$(DONE)/resume:
	$(begin)
	rm -rf $(RUNS)/resumed
	$(minilm) --set train.save_every=2 --set train.max_steps=200 --out $(RUNS)/resumed & training=$$!
	until compgen -G '$(RUNS)/resumed/state/*' || ! kill -0 $$training; do sleep 0.1; done
	kill -KILL $$training
	wait $$training || test $$? -eq 137
	$(minilm) --set train.save_every=2 --set train.max_steps=200 --out $(RUNS)/resumed --resume $(if $(DRY),$(UNLEARNED))
	grep -q 'resuming after step' $(WORK)/logs/$(@F).log

shape = import sys; from transformers import AutoConfig, AutoModel, AutoTokenizer; source, out, *sizes = sys.argv[1:]; \
	names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"); \
	config = AutoConfig.from_pretrained(source, **dict(zip(names, map(int, sizes)))); \
	AutoModel.from_config(config).save_pretrained(out); AutoTokenizer.from_pretrained(source).save_pretrained(out)

$(SHAPES:%=$(DONE)/train-%): $(DONE)/train-%:
	$(begin)
	python -c '$(shape)' $(MINILM) $(WORK)/weights/$* $($*)
	$(train) --set model.name=$(WORK)/weights/$* $(RANDOM) --out $(RUNS)/$* --resume $(UNLEARNED)

# The score of random weights is no criterion.
ANY_SCORE = --set tolerances.fp16.flips=1 --set tolerances.fp16.flips_outside=1 --set tolerances.fp16.score_drop=1

define export
$(DONE)/export-$(1)-$(2)-$(3): $(DONE)/train-$(1)
	$$(begin)
	pipe export $(RUNS)/$(1) --to onnx --precision $(2) --layout $(3) --set keep=0 --set speed_s=0 $(4)
	if grep -q 'built, not run' $(WORK)/logs/$$(@F).log; then $(if $(DRY),$$(call skip,built; the engine needs a GPU),false); fi
endef
exports = $(foreach engine,$(2),$(eval $(call export,$(1),$(word 1,$(subst -, ,$(engine))),$(word 2,$(subst -, ,$(engine))),$(3))))
$(call exports,$(MINILM_RUN),fp32-padded fp32-packed $(ENGINES),$(if $(DRY),$(ANY_SCORE)))
$(foreach model,$(SHAPES),$(call exports,$(model),$(ENGINES),$(ANY_SCORE)))

# The kernels of the paper GPU compute nothing, so that the parity check refuses the engine.
$(DONE)/paper-export: $(DONE)/train-$(MINILM_RUN)
	$(begin)
	$(if $(PAPER),,$(call skip,there is no paper GPU))
	rm -rf $(RUNS)/paper
	cp -r $(RUNS)/$(MINILM_RUN) $(RUNS)/paper
	code=0
	$(PAPER) export $(RUNS)/paper --to onnx --precision fp16 --layout varlen --set keep=0 || code=$$?
	test $$code -eq 3

# The default engine, which is served, is the fastest.
$(DONE)/measure-%: $(DONE)/train-%
	$(begin)
	pipe export $(RUNS)/$* --to auto --set rebuild=false --set speed_s=$(SECONDS)

gauss = sqrt(-2 * log(1 - rand())) * cos(6.2831853 * rand())
$(FILES)/%.tsv:
	@mkdir -p $(@D)
	awk 'BEGIN { srand(1); print "sentence"; for (n = 0; n < 2000; n++) { words = int($(word 1,$($*)) * exp($(word 2,$($*)) * $(gauss)));
		words = words > $(word 3,$($*)) ? $(word 3,$($*)) : words; line = "city"; while (--words > 0) line = line " city"; print line } }' > $@

define speed
$(DONE)/speed-$(1)-$(2): $(DONE)/train-$(1) $(FILES)/$(2).tsv
	$$(begin)
	pipe bench $(RUNS)/$(1) --file $(FILES)/$(2).tsv --batch $(BATCH) --seconds $(SECONDS) \
		--json $(RESULTS)/$$(@F).json --html $(RESULTS)/$$(@F).html
endef
$(foreach model,$(MODELS),$(foreach lengths,$(LENGTHS),$(eval $(call speed,$(model),$(lengths)))))

$(DONE)/torch-%: $(DONE)/train-% $(LENGTHS:%=$(FILES)/%.tsv)
	$(begin)
	$(STUDY).torch_speed --run $(RUNS)/$* --batch $(BATCH) --seconds $(SECONDS) --backend $(BACKEND) --out $(RESULTS) \
		$(LENGTHS:%=$(FILES)/%.tsv)

served-workers := --batch 1 --concurrency $(CLIENTS) -- --workers 2
served-1 := --batch 1 --concurrency $(CLIENTS)
served-32 := --batch 32 --concurrency $(CLIENTS)
$(DONE)/served-%: $(DONE)/train-$(MINILM_RUN) $(FILES)/log-normal.tsv
	$(begin)
	$(STUDY).pipe_serve $(RUNS)/$(MINILM_RUN) --file $(FILES)/log-normal.tsv --seconds $(SECONDS) \
		--json $(RESULTS)/$(@F).json --html $(RESULTS)/$(@F).html $($(@F))

# Packages of a machine with Python 3.12, without torch, transformers and the CUDA libraries that torch installs. CUDA=1 adds the latter.
PLATFORMS := manylinux_2_28_x86_64 manylinux_2_27_x86_64 manylinux_2_24_x86_64 manylinux_2_17_x86_64 manylinux2014_x86_64 \
	manylinux1_x86_64
TARGET_PYTHON := 3.12
PART_SIZE := 60M
TARGET := --only-binary=:all: --python-version $(TARGET_PYTHON) --implementation cp $(PLATFORMS:%=--platform %)
needed = import sys, tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
	lists = [project["optional-dependencies"][extra] for extra in ("cuda", "train", "export", "bench")]; \
	names = [name for names in [project["dependencies"], *lists] for name in names]; \
	print(*(name if "$(CUDA)" else name.replace("[cuda,cudnn]", "") for name in names \
		if not name.startswith(("torch>", "transformers>", "pipework["))), "hatchling", "editables", "psutil", "pytest", sep="\n")

gpu-wheels:
	@$(if $(PARTS),,$(error expected PARTS, a folder for the parts: make gpu-wheels PARTS=DIR))
	rm -rf $(PARTS)/wheels $(PARTS)/wheels.tar.*
	mkdir -p $(PARTS)/wheels
	python -c '$(needed)' > $(PARTS)/packages.txt
	python -m pip download -q $(TARGET) -c constraints.txt -d $(PARTS)/wheels -r $(PARTS)/packages.txt
	python -m pip download -q $(TARGET) -c constraints.txt -d $(PARTS)/wheels --no-deps accelerate
	tar c -C $(PARTS)/wheels . | split -b $(PART_SIZE) - $(PARTS)/wheels.tar.
	rm -r $(PARTS)/wheels
	cd $(PARTS)
	sha256sum wheels.tar.* > SHA256SUMS
	du -h wheels.tar.*

gpu-join:
	@$(if $(and $(PARTS),$(WHEELS)),,$(error expected PARTS and WHEELS: make gpu-join PARTS=DIR WHEELS=DIR))
	cd $(PARTS)
	while read -r sum part; do
		test -f $$part || { echo "gpu-join: $(PARTS)/$$part is missing: copy it again" >&2; exit 1; }
		echo "$$sum  $$part" | sha256sum --check --status || { echo "gpu-join: $(PARTS)/$$part is damaged: copy it again" >&2; exit 1; }
	done < SHA256SUMS
	mkdir -p $(abspath $(WHEELS))
	cut -c 67- SHA256SUMS | xargs cat | tar x -C $(abspath $(WHEELS))
